"""Spans of thinwire's threads in DDP steps: as a trace for Perfetto and as sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..measuring.traces import Span, make_process_events, make_trace

Pieces = Sequence[Sequence[Any]]  # (what, thread, begin, end) in seconds, of one rank


def sum_per_step_ms(ranks: Sequence[Pieces], steps: int) -> dict[str, float]:
    """Milliseconds per step by activity, mean over ranks. Threads run in parallel, so the sum may exceed the step."""
    sums: dict[str, float] = {}
    for pieces in ranks:
        for what, _, begin, end in pieces:
            sums[what] = sums.get(what, 0.0) + 1e3 * (end - begin) / (steps * len(ranks))
    return sums


def make_chrome_trace(by_method: Mapping[str, Sequence[Pieces]]) -> dict[str, Any]:
    """A trace for Chrome's tracing and Perfetto: a process per method and rank, a track per thread."""
    processes = []
    for place, (method, ranks) in enumerate(by_method.items()):
        first = min((begin for pieces in ranks for _, _, begin, _ in pieces), default=0.0)
        for rank, pieces in enumerate(ranks):
            spans = [Span(what, begin, end, thread) for what, thread, begin, end in pieces]
            processes.append(make_process_events(place * len(ranks) + rank, f"{method}, rank {rank}", spans, first))
    return make_trace(processes)
