"""Where a rank's time goes in a step: sums by what was done and, for a trace, every piece of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from ..core import Program, with_timing

T = TypeVar("T")
now = time.perf_counter


class Piece(NamedTuple):
    """Something a thread did, between two readings of the clock."""

    what: str
    thread: str
    begin: float
    end: float


class Times:
    """Seconds by what was done; threads may add at once. While `pieces` is a list, it gets every single one."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self.sums = dict.fromkeys(kinds, 0.0)
        self.pieces: list[Piece] | None = None
        self._lock = threading.Lock()

    def add(self, what: str, began: float, ended: float | None = None) -> None:
        """From `began` until `ended`, or now."""
        ended = now() if ended is None else ended
        with self._lock:
            self.sums[what] += ended - began
            if self.pieces is not None:
                self.pieces.append(Piece(what, threading.current_thread().name, began, ended))

    def timed(self, program: Program[T]) -> Program[T]:
        """The same program; its own work and its waiting for answers are added up."""
        return with_timing(program, partial(self.add, "encoding and decoding"), partial(self.add, "sending"))
