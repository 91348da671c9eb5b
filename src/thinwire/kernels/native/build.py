"""Compile kernels.c once per instruction set: `python build.py`. Needs only Python and a C compiler."""

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
SOURCE = HERE / "kernels.c"  # includes the other files

# The best first. No fast-math and no contraction: all builds give the same bits.
INSTRUCTION_SETS: dict[str, tuple[str, ...]] = {
    "avx512": ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx2"),
    "avx2": ("-mavx2",),
    "baseline": (),
}
_FLAGS = ("-std=c11", "-O3", "-ffp-contract=off", "-Wall", "-Wextra", "-shared", "-fPIC", "-pthread")


def library_file(name: str, folder: Path = HERE) -> Path:
    """The path of a build."""
    return folder / f"kernels_{name}.so"


def supported_builds() -> list[str]:
    """The builds for this architecture; only x86 has more than one."""
    return list(INSTRUCTION_SETS) if platform.machine().lower() in ("x86_64", "amd64") else ["baseline"]


def source_checksum() -> int:
    """The checksum of all C files; a library returns that of the source it was compiled from."""
    return zlib.crc32(b"".join(file.read_bytes() for file in sorted(HERE.glob("*.c"))))


def compiler() -> str | None:
    """$CC, cc or gcc; None if there is none."""
    paths = (shutil.which(name) for name in (os.environ.get("CC", ""), "cc", "gcc") if name)
    return next((path for path in paths if path), None)


def build(folder: Path = HERE, extra: Sequence[str] = (), names: Sequence[str] | None = None) -> list[Path]:
    """Compile the libraries into `folder`.

    Raises:
        RuntimeError: there is no compiler, or it failed; the text has its output.
    """
    cc = compiler()
    if cc is None:
        raise RuntimeError("no C compiler: neither $CC nor cc nor gcc was found")
    made = []
    for name in supported_builds() if names is None else names:
        target = library_file(name, folder)
        part = target.with_suffix(f".{os.getpid()}.part")  # a process with the old library keeps it
        command = [
            cc,
            *_FLAGS,
            *INSTRUCTION_SETS[name],
            f"-DTW_MARK={source_checksum():#x}u",
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
