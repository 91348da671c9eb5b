"""Carries a plan out: jobs side by side where cores allow, those with clocks alone; what is done is not done again."""

from __future__ import annotations

import importlib
import json
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

from thinwire.core import PeerLostError
from thinwire.drivers.driver import Driver
from thinwire.drivers.meter import Meter
from thinwire.drivers.processes import Stopped, error_text, run_ranks

from ..configuration.run_plan import Job, Result, RunPlan
from ..measuring.folder import RunFolder, write_json
from ..testbed.network import network

MOST = 4  # processes side by side: each loads torch, some 300 MB
DAY_S = 86400.0


class Watcher(Protocol):
    """Hears what happens while jobs run, from several threads."""

    def begin(self, jobs: Sequence[Job], done: int) -> None: ...

    def news(self, job: Job, news: dict[str, Any]) -> None: ...

    def ended(self, job: Job, result: Result) -> None: ...


class Silent:
    """Hears and says nothing."""

    def begin(self, jobs: Sequence[Job], done: int) -> None: ...

    def news(self, job: Job, news: dict[str, Any]) -> None: ...

    def ended(self, job: Job, result: Result) -> None: ...


def carry_out(plan: RunPlan, folder: RunFolder, watcher: Watcher | None = None, processes: int | None = None) -> Result:
    """The result of all jobs, stored as result.json. Jobs that have a result in the folder are not run again.

    What a job gives does not depend on what runs beside it. Interrupted or killed, call it again with the same folder.
    """
    watcher = watcher or Silent()
    keys = [job.key for job in plan.jobs]
    if len(set(keys)) != len(keys):
        raise ValueError(f"plan {plan.name}: keys of jobs must differ, got {keys}")
    todo = [job for job in plan.jobs if folder.result_of(job.key) is None]
    watcher.begin(plan.jobs, len(plan.jobs) - len(todo))
    _side_by_side([job for job in todo if not job.alone], folder, watcher, processes)
    for _, same in groupby((job for job in todo if job.alone), lambda job: (job.ranks, job.link)):
        _one_after_another(list(same), folder, watcher)
    results = [folder.result_of(job.key) or {} for job in plan.jobs]
    result = {"name": plan.name, **plan.head, **folder.read("about.json")}
    result |= {"runs": results[: plan.runs]} if plan.runs else {}
    result |= {"checks": [], **plan.finish(results)}
    write_json(folder.path / "result.json", result)
    return folder.read("result.json")


def _side_by_side(jobs: Sequence[Job], folder: RunFolder, watcher: Watcher, processes: int | None) -> None:
    """Each of some processes has its share of the jobs."""
    count = min(len(jobs), processes or min(MOST, os.cpu_count() or 1))
    stop = threading.Event()

    def run_some(first: int) -> None:
        try:
            _one_after_another(jobs[first::count], folder, watcher, stop)
        except Stopped:
            return
        except BaseException:
            stop.set()  # if one cannot go on, the others need not
            raise

    if not count:
        return
    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(run_some, first) for first in range(count)]
        try:
            for future in futures:
                future.result()
        finally:
            stop.set()


def _one_after_another(
    jobs: Sequence[Job], folder: RunFolder, watcher: Watcher, stop: threading.Event | None = None
) -> None:
    """Jobs of as many ranks and the same link, on the same processes; each result is stored as soon as it is there."""
    ranks, link = jobs[0].ranks, jobs[0].link
    done = 0

    def tell(news: dict[str, Any]) -> None:
        nonlocal done
        job = jobs[news["job"]]
        if "news" in news:
            watcher.news(job, news["news"])
            return
        files = [folder.job(job.key) / f"rank{rank}.json" for rank in range(ranks)]
        results = [json.loads(file.read_text()) for file in files]
        result = found(job.gather)(results) if job.gather else results[0]
        folder.store(job.key, result)
        for file in files:
            file.unlink()
        watcher.ended(job, result)
        done = news["job"] + 1

    orders = [
        {"function": job.function, "argument": {**job.argument, "folder": str(folder.job(job.key).resolve())}}
        for job in jobs
    ]
    with nullcontext() if link == "none" else network(ranks, link) as net:
        starts = None if net is None else net.starts()
        try:
            run_ranks(ranks, f"{__name__}:serve", orders, tell=tell, timeout_s=DAY_S, starts=starts, stop=stop)
        except PeerLostError as error:
            raise _with_log(error, jobs[min(done, len(jobs) - 1)], folder) from error


def _with_log(error: PeerLostError, job: Job, folder: RunFolder) -> PeerLostError:
    """The same error for the user: which job, what its rank died of, and the file that has the rest."""
    if not error.log:
        return error
    file = folder.job(job.key) / "error.log"
    file.write_text(error.log + "\n")
    first = str(error).partition("\n")[0].rstrip(":")
    return PeerLostError(f"{job.title or job.key}: {first}: {error_text(error.log)}\nAll of its log: {file}")


def serve(driver: Driver, orders: list[dict[str, Any]], tell: Callable[[Any], None]) -> None:
    """One rank: its part of the jobs, one after another. Results go through files, so that all ranks' come."""
    for at, order in enumerate(orders):

        def told(news: Any, at: int = at) -> None:
            tell({"job": at, "news": news})

        driver.count_with(Meter())
        result = found(order["function"])(driver, order["argument"], told)
        write_json(Path(order["argument"]["folder"]) / f"rank{driver.world.rank}.json", result)
        driver.barrier()
        tell({"job": at})


def found(name: str) -> Callable[..., Any]:
    """The function called "module:name"."""
    module, function = name.split(":")
    return getattr(importlib.import_module(module), function)  # type: ignore[no-any-return]
