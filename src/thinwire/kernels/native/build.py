"""Compiles kernels.c, once for each instruction set: `python build.py`. Needs nothing but Python and a compiler."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE / "kernels.c"

# The best first. No fast-math and no contraction: all builds give the same bits.
INSTRUCTION_SETS: dict[str, tuple[str, ...]] = {
    "avx512": ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx2"),
    "avx2": ("-mavx2",),
    "baseline": (),
}
_FLAGS = ("-std=c11", "-O3", "-ffp-contract=off", "-Wall", "-Wextra", "-shared", "-fPIC")


def library_file(name: str, folder: Path = HERE) -> Path:
    return folder / f"kernels_{name}.so"


def builds_here() -> list[str]:
    """Those that this kind of processor could run in some model; only x86 has more than one."""
    return list(INSTRUCTION_SETS) if platform.machine().lower() in ("x86_64", "amd64") else ["baseline"]


def mark() -> int:
    """Of the text; a library carries that of the text it was made from."""
    return zlib.crc32(SOURCE.read_bytes())


def compiler() -> str | None:
    """$CC, cc or gcc; None if there is none."""
    found = (shutil.which(name) for name in (os.environ.get("CC", ""), "cc", "gcc") if name)
    return next((path for path in found if path), None)


def build(folder: Path = HERE, extra: Sequence[str] = (), names: Sequence[str] | None = None) -> list[Path]:
    """The libraries, in `folder`. RuntimeError with the compiler's words if there is none or it fails."""
    cc = compiler()
    if cc is None:
        raise RuntimeError("no C compiler: neither $CC nor cc nor gcc was found")
    made = []
    for name in builds_here() if names is None else names:
        target = library_file(name, folder)
        part = target.with_suffix(f".{os.getpid()}.part")  # a process that has the old one loaded keeps it
        command = [
            cc,
            *_FLAGS,
            *INSTRUCTION_SETS[name],
            f"-DTW_MARK={mark():#x}u",
            *extra,
            str(SOURCE),
            "-o",
            str(part),
            "-lm",
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
        part.replace(target)
        made.append(target)
    return made


if __name__ == "__main__":
    print(*build(), sep="\n", file=sys.stdout)
