"""What runs and how far it is: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


class Bars:
    """Call it with (what runs, steps done, steps in all); without a terminal it prints a line every five seconds."""

    def __init__(self) -> None:
        self._live = Console(stderr=True).is_terminal
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), disable=not self._live)
        self._tasks: dict[str, TaskID] = {}
        self._spoken = 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._live:
            if what not in self._tasks:
                self._tasks[what] = self._progress.add_task(what, total=total)
            self._progress.update(self._tasks[what], completed=done)
        elif time.monotonic() - self._spoken > 5 or done == total:
            self._spoken = time.monotonic()
            print(f"{what}: step {done} of {total}", flush=True)

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
