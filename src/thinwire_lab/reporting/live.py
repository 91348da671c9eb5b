"""Progress of running jobs: a table that is redrawn on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..configuration.run_plan import Job

LINE_EVERY_S = 5.0


class LiveView:
    """Shows the progress of jobs. Without a terminal it prints at most one line every five seconds."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._terminal = console.is_terminal
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._table) if self._terminal else None
        self._lock = threading.Lock()
        self._jobs: Sequence[Job] = ()
        self._running: dict[str, dict[str, Any]] = {}  # by key, in the order in which they started
        self._done = self._before = 0
        self._began = self._printed = time.monotonic()

    def on_start(self, jobs: Sequence[Job], done: int) -> None:
        self._jobs, self._done, self._before = jobs, done, done
        if done and not self._terminal:
            print(f"{done} of {len(jobs)} jobs were done before", flush=True)

    def on_progress(self, job: Job, progress: dict[str, Any]) -> None:
        with self._lock:
            self._running.setdefault(job.key, {"title": job.title, "began": time.monotonic()}).update(progress)
        if not self._terminal and time.monotonic() - self._printed > LINE_EVERY_S:
            self._printed = time.monotonic()
            print(f"{self._done} of {len(self._jobs)} done; {format_line(self._running[job.key])}", flush=True)

    def on_finish(self, job: Job, result: dict[str, Any]) -> None:
        with self._lock:
            self._running.pop(job.key, None)
            self._done += 1
        if not self._terminal and time.monotonic() - self._printed > LINE_EVERY_S:
            self._printed = time.monotonic()
            print(f"{self._done} of {len(self._jobs)} done; last {job.title}", flush=True)

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0))
        for name in ("running", "step", "loss", "sent", "left"):
            table.add_column(name, justify="left" if name == "running" else "right")
        with self._lock:
            for job in self._running.values():
                loss = job.get("loss")
                steps = f"{job.get('step', 0):,} / {job.get('steps', 0):,}"
                shown = "" if loss is None else f"{loss:.4g}"
                table.add_row(Text(job["title"]), steps, shown, format_sent(job), format_time_left(job))
            table.add_row(
                Text(f"{self._done} of {len(self._jobs)} jobs done", style="bold"), "", "", "", self._format_time_left()
            )
        return table

    def _format_time_left(self) -> str:
        """Estimate the time left for all jobs from the share that is done."""
        done, shares = self._done - self._before, sum(compute_share(job) for job in self._running.values())
        if done + shares < 0.05:
            return ""
        rest = len(self._jobs) - self._done - shares
        return format_duration((time.monotonic() - self._began) / (done + shares) * rest)

    def __enter__(self) -> LiveView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()


def compute_share(job: dict[str, Any]) -> float:
    """Return the share of a job's steps that are done."""
    return float(job.get("step", 0) / max(1, job.get("steps", 1)))


def format_time_left(job: dict[str, Any]) -> str:
    """Return the estimated time left for one job, or nothing while it is too early to tell."""
    done = compute_share(job)
    return format_duration((time.monotonic() - job["began"]) * (1 / done - 1)) if done > 0.02 else ""


def format_duration(seconds: float) -> str:
    """Return seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def format_sent(job: dict[str, Any]) -> str:
    from thinwire.core import format_bytes

    return format_bytes(job["bytes"]) if job.get("bytes") else ""


def format_line(job: dict[str, Any]) -> str:
    """Return the progress of one job as a line of text."""
    loss = "" if job.get("loss") is None else f", loss {job['loss']:.4g}"
    size = f", sent {format_sent(job)}" if job.get("bytes") else ""
    remaining = format_time_left(job)
    time_left = f", {remaining} left" if remaining else ""
    return f"{job['title']}: step {job.get('step', 0)} of {job.get('steps', 0)}{loss}{size}{time_left}"
