"""Where a step's time goes: computing, encoding, sending, waiting. All clocks are this machine's own, so they agree."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from thinwire.core import Program, with_timing

from . import traces
from .request_log import RequestLog

T = TypeVar("T")
now = time.perf_counter  # CLOCK_MONOTONIC on Linux: the same in all processes


class Span(NamedTuple):
    """Something a rank did, between two readings of the clock; bucket -1: of all layers."""

    what: str
    step: int
    bucket: int
    begin: float
    end: float


class Clock:
    """One rank's readings. Sums are kept; the times of single requests go to the file `log`, if there is one."""

    def __init__(self, keep_steps: int = 0, log: Path | None = None) -> None:
        self.sums: dict[str, float] = {}
        self.requests = RequestLog(log)
        self.request_s = 0.0  # from asking to the answer, all requests together
        self.spans: list[Span] = []
        self.keep_steps = keep_steps
        self.step, self.bucket = 0, -1

    @contextmanager
    def timing(self, what: str) -> Iterator[None]:
        began = now()
        try:
            yield
        finally:
            self._add(what, began, now())

    def timed(self, program: Program[T], what: str = "encode", bucket: int = -1) -> Program[T]:
        """The same program: what it computes is `what`, what it asks for is a request."""
        self.bucket = bucket
        return (yield from with_timing(program, partial(self._add, what), self._add_request))

    def _add_request(self, asked: float, answered: float) -> None:
        self.request_s += answered - asked
        self.requests.add(asked, answered)
        self._keep("request", asked, answered)

    def _add(self, what: str, began: float, ended: float) -> None:
        self.sums[what] = self.sums.get(what, 0.0) + ended - began
        self._keep(what, began, ended)

    def _keep(self, what: str, began: float, ended: float) -> None:
        """Spans of the last few steps only."""
        if not self.keep_steps:
            return
        self.spans.append(Span(what, self.step, self.bucket, began, ended))
        while self.spans[0].step <= self.step - self.keep_steps:
            del self.spans[0]

    def elapsed(self) -> float:
        """Seconds of training so far, measuring left out."""
        own = sum(seconds for what, seconds in self.sums.items() if what != "measure")
        return own + self.request_s

    def to_dict(self) -> dict[str, Any]:
        """For the process that gathers all ranks' clocks; `requests` is the file of their times."""
        self.requests.flush()
        return {"sums": self.sums, "requests": str(self.requests.path), "spans": self.spans}

    def state_dict(self) -> dict[str, Any]:
        """Of the same size however long the run is."""
        self.requests.flush()  # before the checkpoint, which tells how many of them count
        return {"sums": self.sums, "requests": self.requests.count, "request_s": self.request_s}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.sums = dict(state["sums"])
        self.requests.go_on_from(state["requests"])
        if "request_s" in state:
            self.request_s = float(state["request_s"])
        else:  # a checkpoint of an earlier version has all pairs
            self.request_s = sum(answered - asked for asked, answered in state["requests"])


def waiting_and_sending(requests: Sequence[Sequence[Sequence[float]]]) -> tuple[float, float]:
    """Seconds of waiting and of communication, summed over requests, mean over ranks.

    requests[rank][i] is when rank asked the i-th time, and when it was answered.

    A rank waits from its own arrival until the latest one's; what is left until its answer is communication. No barrier
    is added to find out.
    """
    if not requests or not requests[0]:
        return 0.0, 0.0
    waiting = sending = 0.0
    for same in zip(*requests, strict=True):
        latest = max(asked for asked, _ in same)
        for asked, answered in same:
            waiting += min(latest, answered) - asked
            sending += max(0.0, answered - latest)
    return waiting / len(requests), sending / len(requests)


def chrome_trace(
    spans: Sequence[Sequence[Sequence[Any]]], requests: Sequence[Sequence[Sequence[float]]]
) -> dict[str, Any]:
    """Spans of all ranks in the form that Chrome's tracing and Perfetto read; times in microseconds from the first."""
    begin = min((span[3] for rank in spans for span in rank), default=0.0)
    latest = {}
    for same in zip(*requests, strict=True):
        last = max(asked for asked, _ in same)
        latest.update({(rank, asked): last for rank, (asked, _) in enumerate(same)})
    processes = []
    for rank, mine in enumerate(spans):
        shown: list[traces.Span] = []
        for what, step, bucket, began, ended in mine:
            pieces = [(what, began, ended)]
            if what == "request":
                arrived = min(max(latest.get((rank, began), began), began), ended)
                pieces = [("wait", began, arrived), ("send", arrived, ended)]
            about = {"step": step, "bucket": bucket}
            shown += [traces.Span(name, start, stop, args=about) for name, start, stop in pieces if stop > start]
        processes.append(traces.process_events(rank, f"rank {rank}", shown, begin))
    return traces.trace_of(processes)
