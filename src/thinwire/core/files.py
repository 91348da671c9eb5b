"""Atomic writing of files."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Write to a temporary file, flush it to disk, and rename it; until then `path` stays as it was."""
    temporary = path.with_name(f".{path.name}.part-{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
