"""Times of all requests of one rank, in a file, so that memory and checkpoints do not grow with the length of a run."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable
from pathlib import Path

from .folder import RunFolderError

_PAIR_BYTES = 16  # two float64 (asked, answered) in the byte order of this machine, which all ranks of a job share
_MAX_PENDING = 8192  # numbers in memory before they are written


class RequestLog:
    """When a rank issued each request and when it was answered. The waiting time follows from the logs of all ranks.

    path: None stores nothing, for lockstep runs, in which no rank waits.
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
        """Write pending times, so that all `count` requests are on disk; cut off later ones of an interrupted run."""
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

    def truncate_to(self, stored: int | Iterable[Iterable[float]]) -> None:
        """Keep the first `stored` requests only. Checkpoints of earlier versions have the times themselves."""
        self.count, self._pending = 0, array("d")
        if self.path is None:
            return
        if not isinstance(stored, int):
            for asked, answered in stored:
                self.add(asked, answered)
            return
        size = self.path.stat().st_size if self.path.is_file() else 0
        if size < _PAIR_BYTES * stored:
            raise RunFolderError(
                f"{self.path} has the times of {size // _PAIR_BYTES} requests, the checkpoint has {stored}; remove "
                f"{self.path.parents[1]} and resume again: that job then starts from the beginning"
            )
        self.count = stored


def read_requests(path: Path) -> list[tuple[float, float]]:
    """All (asked, answered) pairs of a flushed log."""
    numbers = array("d")
    numbers.frombytes(path.read_bytes())
    return list(zip(numbers[::2], numbers[1::2], strict=True))
