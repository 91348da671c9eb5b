"""Loading of the C kernels: the best build that this processor can run, at first use.

THINWIRE_KERNELS=reference disables them, THINWIRE_KERNELS=baseline (or avx2, avx512) selects a build. A library that
does not load is a warning in the log; one that was never built is not: the torch expressions give the same bits, and
`thinwire doctor` shows which kernels are used.
"""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from pathlib import Path

from ...core.logs import get_logger
from .build import HERE, INSTRUCTION_SETS, library_file, source_checksum, supported_builds
from .signatures import declare

_NEEDS = {"avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq"}, "avx2": {"avx2"}, "baseline": set[str]()}
VARIABLE = "THINWIRE_KERNELS"
log = get_logger(__name__)


@lru_cache(maxsize=1)
def processor_flags() -> frozenset[str]:
    """The CPU flags of /proc/cpuinfo; empty outside Linux, where the baseline build is used."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), ()))


def runnable_builds() -> list[str]:
    """The builds that exist and run on this processor, the best first."""
    return [name for name in supported_builds() if _NEEDS[name] <= processor_flags() and library_file(name).exists()]


@lru_cache
def load(name: str) -> ctypes.CDLL:
    """Load a build.

    Raises:
        OSError: it cannot be loaded, or it was compiled from another source than that of this package.
    """
    opened = ctypes.CDLL(str(library_file(name)))
    opened.tw_mark.restype = ctypes.c_uint32
    if opened.tw_mark() != source_checksum():
        raise OSError(f"{library_file(name).name} was compiled from another version; reinstall thinwire")
    return declare(opened)


@lru_cache(maxsize=1)
def _choose_library() -> tuple[ctypes.CDLL | None, str]:
    wanted = os.environ.get(VARIABLE, "")
    if wanted == "reference":
        return None, f"torch reference ({VARIABLE}=reference)"
    names = runnable_builds()
    if wanted and wanted not in names:
        known = ", ".join(("reference", *INSTRUCTION_SETS))
        raise ValueError(f"{VARIABLE} must be one of {known}, got {wanted!r}; builds that run here: {names}")
    if not names:
        return None, "torch reference (no C kernels: the installation found no compiler)"
    name = wanted or names[0]
    try:
        return load(name), f"C, {name}"
    except (OSError, AttributeError) as error:  # AttributeError: the library lacks a function that we call
        log.warning(
            "the C kernels do not load (%s); slower torch expressions are used, with the same results. "
            "Reinstall thinwire, or run: python %s",
            error, HERE / "build.py",
        )  # fmt: skip
        return None, f"torch reference (the C kernels do not load: {error})"


def library() -> ctypes.CDLL | None:
    """The loaded C kernels, or None if the torch expressions are used."""
    return _choose_library()[0]


def describe_kernels() -> str:
    """A short text: which kernels are used."""
    return _choose_library()[1]
