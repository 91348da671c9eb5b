"""Times of all requests of one rank, in a file: memory and checkpoints do not grow with the length of a run."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable
from pathlib import Path

from .folder import RunFolderError

_PAIR_BYTES = 16  # asked and answered, 8 bytes each, in this machine's order: ranks of a job share one
_MAX_PENDING = 8192  # numbers in memory before they are written


class RequestLog:
    """When a rank asked and when it was answered. How long a rank waited for others is known only from all logs.

    path: None keeps nothing, for runs in one process, in which no rank waits.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.count = 0
        self._pending = array("d")

    def add(self, asked: float, answered: float) -> None:
        if self.path is None:
            return
        self._pending.extend((asked, answered))
        self.count += 1
        if len(self._pending) >= _MAX_PENDING:
            self.flush()

    def flush(self) -> None:
        """Write what is in memory, so that all `count` requests are on disk, and cut off what an earlier try left."""
        if self.path is None:
            return
        before = _PAIR_BYTES * self.count - 8 * len(self._pending)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("r+b" if before else "wb") as file:
            file.truncate(before)
            file.seek(before)
            self._pending.tofile(file)
            file.flush()
            os.fsync(file.fileno())
        self._pending = array("d")

    def go_on_from(self, held: int | Iterable[Iterable[float]]) -> None:
        """Forget what came after the first `held` requests. Checkpoints of earlier versions have the times in them."""
        self.count, self._pending = 0, array("d")
        if self.path is None:
            return
        if not isinstance(held, int):
            for asked, answered in held:
                self.add(asked, answered)
            return
        size = self.path.stat().st_size if self.path.is_file() else 0
        if size < _PAIR_BYTES * held:
            raise RunFolderError(
                f"{self.path}: {held} requests are needed to go on, it has {size // _PAIR_BYTES}; remove "
                f"{self.path.parents[1]} and resume again: that job starts from the beginning"
            )
        self.count = held


def read_requests(path: Path) -> list[tuple[float, float]]:
    """The pairs of a log that was flushed."""
    numbers = array("d")
    numbers.frombytes(path.read_bytes())
    return list(zip(numbers[::2], numbers[1::2], strict=True))
