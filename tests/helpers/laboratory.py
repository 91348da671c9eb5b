"""Running a plan inside a test: in a temporary folder, without a word."""

from __future__ import annotations

import tempfile
from pathlib import Path

from thinwire_lab.measuring.folder import RunFolder
from thinwire_lab.running.build_jobs import plan_of
from thinwire_lab.running.run_jobs import carry_out, found

TIMES = ("seconds", "times", "trace", "adapting")  # what two equal runs need not share


def run_plan(plan, folder=None, processes=1, watcher=None):
    if folder is not None:
        return carry_out(plan, RunFolder.new(Path(folder), {}, "test"), watcher, processes)
    with tempfile.TemporaryDirectory() as place:
        return carry_out(plan, RunFolder.new(Path(place) / "run", {}, "test"), watcher, processes)


def run_here(experiment, finish=None):
    """All runs of an experiment in this very process; lockstep only."""
    plan = plan_of(experiment, finish=finish)
    with tempfile.TemporaryDirectory() as place:
        runs = [found(job.function)(None, {**job.argument, "folder": place}, lambda news: None) for job in plan.jobs]
    return {**plan.head, "runs": runs, **plan.finish(runs)}


def without_times(run):
    curve = {name: column for name, column in run["curve"].items() if name not in TIMES}
    final = {name: value for name, value in run["final"].items() if name not in TIMES}
    return {key: value for key, value in run.items() if key not in TIMES} | {"curve": curve, "final": final}
