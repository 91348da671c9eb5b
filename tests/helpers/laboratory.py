"""Running a plan inside a test: in a temporary folder, without a word."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from thinwire_lab.configuration.config import Experiment
from thinwire_lab.configuration.run_plan import RunPlan
from thinwire_lab.measuring.folder import RunFolder
from thinwire_lab.running.build_jobs import build_run_plan
from thinwire_lab.running.run_jobs import import_object, run_jobs

TIMES = ("seconds", "times", "trace", "controller")  # what two equal runs need not share


def run_plan(
    plan: RunPlan, folder: Path | str | None = None, max_parallel: int = 1, reporter: Any = None
) -> dict[str, Any]:
    if folder is not None:
        return run_jobs(plan, RunFolder.create(Path(folder), {}, "test"), reporter, max_parallel)
    with tempfile.TemporaryDirectory() as place:
        return run_jobs(plan, RunFolder.create(Path(place) / "run", {}, "test"), reporter, max_parallel)


def run_here(experiment: Experiment, finish: Any = None) -> dict[str, Any]:
    """All runs of an experiment in this very process; lockstep only."""
    plan = build_run_plan(experiment, finish=finish)
    with tempfile.TemporaryDirectory() as place:
        runs = [
            import_object(job.function)(None, {**job.argument, "folder": place}, lambda progress: None)
            for job in plan.jobs
        ]
    return {**plan.head, "runs": runs, **plan.finish(runs)}


def without_times(run: dict[str, Any]) -> dict[str, Any]:
    curve = {name: column for name, column in run["curve"].items() if name not in TIMES}
    final = {name: value for name, value in run["final"].items() if name not in TIMES}
    return {key: value for key, value in run.items() if key not in TIMES} | {"curve": curve, "final": final}
