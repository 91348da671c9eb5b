"""Times of one rank: computing, encoding, sending, waiting. All ranks run on one machine, so their clocks agree."""

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
now = time.perf_counter  # CLOCK_MONOTONIC on Linux: common to all processes


class ClockSpan(NamedTuple):
    """One activity of a rank between two readings of the clock. bucket -1: all layers."""

    what: str
    step: int
    bucket: int
    begin: float
    end: float


class Clock:
    """Sums of one rank's times by activity; the times of single requests go to the file `log`, if given.

    keep_steps: the spans of this number of last steps are kept for a trace; 0: none.
    """

    def __init__(self, keep_steps: int = 0, log: Path | None = None) -> None:
        self.sums: dict[str, float] = {}
        self.requests = RequestLog(log)
        self.request_s = 0.0  # between request and answer, summed over all requests
        self.spans: list[ClockSpan] = []
        self.keep_steps = keep_steps
        self.step, self.bucket = 0, -1

    @contextmanager
    def timing(self, what: str) -> Iterator[None]:
        began = now()
        try:
            yield
        finally:
            self._add(what, began, now())

    def time_program(self, program: Program[T], what: str = "encode", bucket: int = -1) -> Program[T]:
        """The same program, timed: its computation counts as `what`, its requests as requests."""
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
        """Keep the spans of the last `keep_steps` steps."""
        if not self.keep_steps:
            return
        self.spans.append(ClockSpan(what, self.step, self.bucket, began, ended))
        while self.spans[0].step <= self.step - self.keep_steps:
            del self.spans[0]

    def elapsed(self) -> float:
        """Seconds of training so far, without measuring."""
        own = sum(seconds for what, seconds in self.sums.items() if what != "measure")
        return own + self.request_s

    def to_dict(self) -> dict[str, Any]:
        """For the process that merges all ranks' clocks; `requests` is the path of the request log."""
        self.requests.flush()
        return {"sums": self.sums, "requests": str(self.requests.path), "spans": self.spans}

    def state_dict(self) -> dict[str, Any]:
        """Its size does not grow with the length of the run."""
        self.requests.flush()  # the checkpoint stores how many entries of the file are valid
        return {"sums": self.sums, "requests": self.requests.count, "request_s": self.request_s}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.sums = dict(state["sums"])
        self.requests.truncate_to(state["requests"])
        if "request_s" in state:
            self.request_s = float(state["request_s"])
        else:  # checkpoints of an earlier version contain all pairs
            self.request_s = sum(answered - asked for asked, answered in state["requests"])


def split_waiting_and_sending(requests: Sequence[Sequence[Sequence[float]]]) -> tuple[float, float]:
    """Seconds of waiting and of communication, summed over requests, mean over ranks.

    A rank waits from its own request until the last rank's; the rest of the time until its answer is communication.
    No extra barrier is needed.

    Args:
        requests: requests[rank][i] is (asked, answered) of the rank's i-th request.
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


def make_chrome_trace(
    spans: Sequence[Sequence[Sequence[Any]]], requests: Sequence[Sequence[Sequence[float]]]
) -> dict[str, Any]:
    """A trace of all ranks for Chrome's tracing and Perfetto; times in microseconds from the first span."""
    begin = min((span[3] for rank in spans for span in rank), default=0.0)
    latest = {}
    for same in zip(*requests, strict=True):
        last = max(asked for asked, _ in same)
        latest.update({(rank, asked): last for rank, (asked, _) in enumerate(same)})
    processes = []
    for rank, mine in enumerate(spans):
        rank_spans: list[traces.Span] = []
        for what, step, bucket, began, ended in mine:
            pieces = [(what, began, ended)]
            if what == "request":
                arrived = min(max(latest.get((rank, began), began), began), ended)
                pieces = [("wait", began, arrived), ("send", arrived, ended)]
            details = {"step": step, "bucket": bucket}
            rank_spans += [traces.Span(name, start, stop, args=details) for name, start, stop in pieces if stop > start]
        processes.append(traces.make_process_events(rank, f"rank {rank}", rank_spans, begin))
    return traces.make_trace(processes)
