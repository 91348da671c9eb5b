"""Run the jobs of a plan: single-rank jobs in parallel, multi-rank jobs one at a time; skip finished ones."""

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

MAX_PROCESSES = 4  # in parallel by default: each loads torch, about 300 MB
DAY_S = 86400.0


class Reporter(Protocol):
    """Callbacks for the progress of jobs. They are called from several threads."""

    def on_start(self, jobs: Sequence[Job], done: int) -> None: ...

    def on_progress(self, job: Job, progress: dict[str, Any]) -> None: ...

    def on_finish(self, job: Job, result: Result) -> None: ...


class NullReporter:
    """A reporter that ignores everything."""

    def on_start(self, jobs: Sequence[Job], done: int) -> None: ...

    def on_progress(self, job: Job, progress: dict[str, Any]) -> None: ...

    def on_finish(self, job: Job, result: Result) -> None: ...


def run_jobs(
    plan: RunPlan, folder: RunFolder, reporter: Reporter | None = None, max_parallel: int | None = None
) -> Result:
    """Run all jobs of a plan and store the combined result as result.json.

    A job that already has a result in the folder is not run again, so an interrupted run continues when this is called
    with the same folder. The result of a job does not depend on which jobs run in parallel.

    Args:
        plan: the jobs and how their results are combined.
        folder: the run's folder.
        reporter: receives progress; None: no output.
        max_parallel: single-rank jobs that run at the same time; None: one per core, at most MAX_PROCESSES.

    Returns:
        What result.json contains.

    Raises:
        PeerLostError: a rank of a job failed; its log is in the job's folder.
    """
    reporter = reporter or NullReporter()
    keys = [job.key for job in plan.jobs]
    if len(set(keys)) != len(keys):
        raise ValueError(f"plan {plan.name}: each job needs a key of its own, got {keys}")
    todo = [job for job in plan.jobs if folder.read_result(job.key) is None]
    reporter.on_start(plan.jobs, len(plan.jobs) - len(todo))
    _run_in_parallel([job for job in todo if not job.runs_alone], folder, reporter, max_parallel)
    for _, same in groupby((job for job in todo if job.runs_alone), lambda job: (job.ranks, job.link)):
        _run_in_sequence(list(same), folder, reporter)
    results = [folder.read_result(job.key) or {} for job in plan.jobs]
    result = {"name": plan.name, **plan.head, **folder.read("about.json")}
    result |= {"runs": results[: plan.runs]} if plan.runs else {}
    result |= {"checks": [], **plan.finish(results)}
    write_json(folder.path / "result.json", result)
    return folder.read("result.json")


def _run_in_parallel(jobs: Sequence[Job], folder: RunFolder, reporter: Reporter, max_parallel: int | None) -> None:
    """Deal the jobs out to several processes; each runs its own in sequence."""
    count = min(len(jobs), max_parallel or min(MAX_PROCESSES, os.cpu_count() or 1))
    stop = threading.Event()

    def run_some(first: int) -> None:
        try:
            _run_in_sequence(jobs[first::count], folder, reporter, stop)
        except Stopped:
            return
        except BaseException:
            stop.set()  # one failed: stop the others
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


def _run_in_sequence(
    jobs: Sequence[Job], folder: RunFolder, reporter: Reporter, stop: threading.Event | None = None
) -> None:
    """Run jobs with the same number of ranks and the same link on the same processes; store each result at once."""
    ranks, link = jobs[0].ranks, jobs[0].link
    done = 0

    def on_message(message: dict[str, Any]) -> None:
        nonlocal done
        job = jobs[message["job"]]
        if "progress" in message:
            reporter.on_progress(job, message["progress"])
            return
        files = [folder.job_folder(job.key) / f"rank{rank}.json" for rank in range(ranks)]
        results = [json.loads(file.read_text()) for file in files]
        result = import_object(job.gather)(results) if job.gather else results[0]
        folder.store_result(job.key, result)
        for file in files:
            file.unlink()
        reporter.on_finish(job, result)
        done = message["job"] + 1

    orders = [
        {"function": job.function, "argument": {**job.argument, "folder": str(folder.job_folder(job.key).resolve())}}
        for job in jobs
    ]
    with nullcontext() if link == "none" else network(ranks, link) as net:
        starts = None if net is None else net.command_prefixes()
        try:
            run_ranks(
                ranks,
                f"{__name__}:run_orders",
                orders,
                on_progress=on_message,
                timeout_s=DAY_S,
                command_prefixes=starts,
                stop_event=stop,
            )
        except PeerLostError as error:
            raise _with_log(error, jobs[min(done, len(jobs) - 1)], folder) from error


def _with_log(error: PeerLostError, job: Job, folder: RunFolder) -> PeerLostError:
    """The same error with the job's title, the error of the failed rank and the path of its full log."""
    if not error.log:
        return error
    file = folder.job_folder(job.key) / "error.log"
    file.write_text(error.log + "\n")
    first = str(error).partition("\n")[0].rstrip(":")
    return PeerLostError(f"{job.title or job.key}: {first}: {error_text(error.log)}\nFull log: {file}")


def run_orders(driver: Driver, orders: list[dict[str, Any]], send: Callable[[Any], None]) -> None:
    """Run one rank's part of the jobs in sequence. Every rank writes its result to a file for the parent process."""
    for at, order in enumerate(orders):

        def on_progress(progress: Any, at: int = at) -> None:
            send({"job": at, "progress": progress})

        driver.set_meter(Meter())
        result = import_object(order["function"])(driver, order["argument"], on_progress)
        write_json(Path(order["argument"]["folder"]) / f"rank{driver.world.rank}.json", result)
        driver.barrier()
        send({"job": at})


def import_object(name: str) -> Callable[..., Any]:
    """Import the function with the path "module:name"."""
    module, function = name.split(":")
    return getattr(importlib.import_module(module), function)  # type: ignore[no-any-return]
