"""Trace files for Chrome's tracing and Perfetto."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple


class Span(NamedTuple):
    """One activity, in seconds. thread: name of its track; "" if the process has a single track without a name."""

    name: str
    begin: float
    end: float
    thread: str = ""
    args: Mapping[str, Any] | None = None


def make_process_events(pid: int, name: str, spans: Sequence[Span], origin: float) -> list[dict[str, Any]]:
    """Events of one process; times are written in microseconds from `origin`."""
    events: list[dict[str, Any]] = [{"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}]
    lines = {thread: tid for tid, thread in enumerate(dict.fromkeys(span.thread for span in spans))}
    for thread, tid in lines.items():
        if thread:
            events.append({"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": thread}})
    for span in spans:
        when = {"ts": 1e6 * (span.begin - origin), "dur": 1e6 * (span.end - span.begin)}
        more = {} if span.args is None else {"args": dict(span.args)}
        events.append({"ph": "X", "pid": pid, "tid": lines[span.thread], "name": span.name, **when, **more})
    return events


def make_trace(processes: Iterable[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """The trace file as a JSON object."""
    return {"traceEvents": [event for events in processes for event in events], "displayTimeUnit": "ms"}
