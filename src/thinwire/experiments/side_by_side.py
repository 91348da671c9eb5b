"""Independent tasks on several processes of this machine. What they give does not depend on how many there are."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..drivers.processes import run_ranks
from ..drivers.torch_dist import TorchDist

Share = Callable[[float], None]  # how much of a task is done, 0 to 1
MOST = 4  # each process loads torch, some 300 MB


def side_by_side(job: str, tasks: Sequence[Any], done: Share, processes: int | None = None) -> list[Any]:
    """Results of `job(task, share)` for every task, in order; a job is "module:function", tasks and results are JSON.

    `done` hears the share of all the work that is done. Each task runs with one thread.
    """
    count = min(len(tasks), processes or min(MOST, os.cpu_count() or 1))
    shares = [0.0] * len(tasks)

    def run_some(first: int) -> list[Any]:
        def tell(news: tuple[int, float]) -> None:
            shares[first + news[0] * count] = news[1]
            done(sum(shares) / len(shares))

        argument = {"job": job, "tasks": list(tasks[first::count])}
        return run_ranks(1, f"{__name__}:serve", argument, tell=tell, timeout_s=7200)[0]  # type: ignore[no-any-return]

    with ThreadPoolExecutor(max(1, count)) as pool:
        parts = list(pool.map(run_some, range(count)))
    return [parts[at % count][at // count] for at in range(len(tasks))]


def serve(driver: TorchDist, argument: dict[str, Any], tell: Callable[[tuple[int, float]], None]) -> list[Any]:
    """One process: its tasks, one after another."""
    del driver  # a world of one; nothing is sent
    module, function = argument["job"].split(":")
    job = getattr(importlib.import_module(module), function)
    results = []
    for at, task in enumerate(argument["tasks"]):
        results.append(job(task, _now_and_then(tell, at)))
        tell((at, 1.0))
    return results


def _now_and_then(tell: Callable[[tuple[int, float]], None], at: int) -> Share:
    """Tell once a second at most: tasks may speak at every step."""
    last = time.monotonic()

    def share(done: float) -> None:
        nonlocal last
        if time.monotonic() - last > 1:
            last = time.monotonic()
            tell((at, done))

    return share
