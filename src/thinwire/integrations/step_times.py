"""Where a rank's time goes in a step: seconds by kind of work and, for a trace, each span."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from ..core import Program, with_timing

T = TypeVar("T")
now = time.perf_counter


class TraceSpan(NamedTuple):
    """One span of work of a thread, in seconds of `now`."""

    kind: str
    thread: str
    begin: float
    end: float


class StepTimes:
    """Seconds by kind of work; several threads may add. While `spans` is a list, each span is appended to it."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self.sums = dict.fromkeys(kinds, 0.0)
        self.spans: list[TraceSpan] | None = None
        self._lock = threading.Lock()

    def add(self, kind: str, began: float, ended: float | None = None) -> None:
        """Add the time from `began` until `ended`, or until now."""
        ended = now() if ended is None else ended
        with self._lock:
            self.sums[kind] += ended - began
            if self.spans is not None:
                self.spans.append(TraceSpan(kind, threading.current_thread().name, began, ended))

    def timed(self, program: Program[T]) -> Program[T]:
        """Return the same program; adds the time of its computation and of its waiting for answers."""
        return with_timing(program, partial(self.add, "encoding and decoding"), partial(self.add, "sending"))
