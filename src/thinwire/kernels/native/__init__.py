"""The kernels in C: which build of them this processor can run, loaded when first asked for.

THINWIRE_KERNELS=reference switches them off, THINWIRE_KERNELS=baseline (or avx2, avx512) asks for that build. A library
that is there and does not load is a warning in the log; one that was never built is not: the installation said so, the
torch expressions give the same bits, and `thinwire doctor` shows it.
"""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from pathlib import Path

from ...core.logs import get_logger
from .build import HERE, INSTRUCTION_SETS, builds_here, library_file, mark
from .signatures import declare

_NEEDS = {"avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq"}, "avx2": {"avx2"}, "baseline": set[str]()}
VARIABLE = "THINWIRE_KERNELS"
log = get_logger(__name__)


@lru_cache(maxsize=1)
def processor_flags() -> frozenset[str]:
    """What the processor and its kernel allow; nothing is known outside Linux, where the baseline will do."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), ()))


def runnable() -> list[str]:
    """Builds that were made and that run here, the best first."""
    return [name for name in builds_here() if _NEEDS[name] <= processor_flags() and library_file(name).exists()]


@lru_cache
def load(name: str) -> ctypes.CDLL:
    """A build. OSError if it was made from another text than this package has: its arguments may be others."""
    opened = ctypes.CDLL(str(library_file(name)))
    opened.tw_mark.restype = ctypes.c_uint32
    if opened.tw_mark() != mark():
        raise OSError(f"{library_file(name).name} is not of this version; install thinwire again")
    return declare(opened)


@lru_cache(maxsize=1)
def _chosen() -> tuple[ctypes.CDLL | None, str]:
    wanted = os.environ.get(VARIABLE, "")
    if wanted == "reference":
        return None, f"torch reference ({VARIABLE}=reference)"
    names = runnable()
    if wanted and wanted not in names:
        known = ", ".join(("reference", *INSTRUCTION_SETS))
        raise ValueError(f"{VARIABLE}: {wanted!r} is not one of {known}, or does not run here; here: {names}")
    if not names:
        return None, "torch reference (this installation has no C kernels: there was no compiler)"
    name = wanted or names[0]
    try:
        return load(name), f"C, {name}"
    except (OSError, AttributeError) as error:  # AttributeError: the library lacks a function that we call
        log.warning(
            "the C kernels do not load (%s); slower torch expressions serve instead, with the same results. "
            "Remedy: install thinwire again, or python %s",
            error, HERE / "build.py",
        )  # fmt: skip
        return None, f"torch reference (the C kernels do not load: {error})"


def library() -> ctypes.CDLL | None:
    """The kernels that serve CPU tensors, or None where the torch expressions do."""
    return _chosen()[0]


def serving() -> str:
    """Which kernels serve, in a few words."""
    return _chosen()[1]
