"""Make the plan of an experiment: one job for every method, group and seed; combine the results of all runs."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..configuration.config import Experiment, RunGroup
from ..configuration.run_plan import Job, RunPlan
from ..configuration.slugs import slugify
from ..tables import ConfigError
from ..tasks import make_task
from ..tasks.splits import Split
from .method_checks import check_methods

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LINKS = {"100 Mbit/s": 1e8, "1 Gbit/s": 1e9, "10 Gbit/s": 1e10}


def read_experiment(path: Path) -> Experiment:
    """Read an experiment from a TOML file or from the config.json of a run."""
    try:
        text = path.read_text()
        config = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        return Experiment.from_dict(config, name=path.stem)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def build_run_plan(
    experiment: Experiment, data: str | None = None, finish: Any = None, more: Sequence[Job] = ()
) -> RunPlan:
    """Make the plan of an experiment. Data are located, and everything is checked, before any job starts.

    Args:
        experiment: what to run.
        data: folder of the data sets; None: $THINWIRE_DATA, the cache, or a download.
        finish: called with the list of runs (and the results of `more`, if any); returns more entries of the result.
        more: jobs in addition to the training runs.

    Raises:
        ConfigError: a method, task or group cannot run as configured.
        DataError: data are missing or damaged.
    """
    task = make_task(experiment.task.name, experiment.task.settings, data)
    steps = {}
    for group in experiment.groups:
        own = experiment.task_of(group)
        group_task = make_task(own.name, own.settings, data)
        group_task.prepare(group.workers, Split.parse(group.split))
        check_methods(experiment, group, group_task)
        steps[group.title] = group.steps or count_steps(experiment, group, group_task.describe())
    head = {
        "title": experiment.title or experiment.name, "description": experiment.description,
        "config": experiment.to_dict(), "task": task.describe(),
        "target": None if experiment.target is None else vars(experiment.target) | {},
    }  # fmt: skip
    jobs = [
        _make_job(experiment, at, group, label, seed, steps[group.title], data)
        for at, group in enumerate(experiment.groups)
        for label in (method.label for method in experiment.methods_of(group))
        for seed in experiment.seeds
    ]
    combine = partial(combine_results, experiment, finish, len(jobs))
    return RunPlan(experiment.name, head, [*jobs, *more], combine, runs=len(jobs))


def count_steps(experiment: Experiment, group: RunGroup, about: Mapping[str, Any]) -> int:
    if experiment.steps:
        return experiment.steps
    examples, batch = about.get("examples"), about.get("batch")
    if not isinstance(examples, int) or not isinstance(batch, int):
        raise ConfigError(f"epochs: this task has no epochs (batch is {batch!r}); use steps instead")
    batch_examples = batch * int(
        about.get("context", 1)
    )  # of text, examples are tokens and a batch is a number of windows
    return math.ceil(experiment.epochs * examples / (batch_examples * group.workers))


def _make_job(
    experiment: Experiment, at: int, group: RunGroup, label: str, seed: int, steps: int, data: str | None
) -> Job:
    real = group.driver == "processes"
    function = f"{__package__}.training:{'train_one_rank' if real else 'train_in_lockstep'}"
    argument = {
        "experiment": experiment.to_dict(), "group": at, "label": label, "seed": seed, "steps": steps, "data": data,
    }  # fmt: skip
    seeds = f", seed {seed}" if len(experiment.seeds) > 1 else ""
    return Job(
        key=f"{at}-{slugify(label)}-{experiment.methods_of(group).index(_method(experiment, label))}-seed{seed}",
        function=function, argument=argument, title=f"{label}{seeds} ({group.title})", link=group.link,
        ranks=group.workers if real else 1, gather=f"{__package__}.training:merge_rank_results" if real else "",
    )  # fmt: skip


def _method(experiment: Experiment, label: str) -> Any:
    return next(method for method in experiment.methods if method.label == label)


def combine_results(experiment: Experiment, finish: Any, count: int, results: list[dict[str, Any]]) -> dict[str, Any]:
    runs, more = results[:count], results[count:]
    combined = {"checks": check_parity(experiment, runs), "modelled": model_step_times(runs)}
    if finish is None:
        return combined
    return combined | dict(finish(runs, more) if more else finish(runs))


def check_parity(experiment: Experiment, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compare each run on processes with the lockstep run of the same workers and split, bit for bit."""
    checks = []
    for real in (g for g in experiment.groups if g.driver == "processes"):
        for twin in experiment.groups:
            if (twin.workers, twin.split, twin.driver) != (real.workers, real.split, "lockstep"):
                continue
            ours, theirs = _curves(runs, real), _curves(runs, twin)
            both = [key for key in ours if key in theirs]
            differing = [label for label, seed in both if ours[label, seed] != theirs[label, seed]]
            detail = f"all curves and bytes of {len(both)} runs are equal to the last bit"
            checks.append({
                "text": f"{real.title}: the same figures as {twin.title}", "holds": not differing,
                "detail": f"differing: {', '.join(differing)}" if differing else detail,
            })  # fmt: skip
    return checks


def _curves(runs: list[dict[str, Any]], group: RunGroup) -> dict[tuple[str, int], Any]:
    """The curves of a group by (label, seed), without the column of seconds."""
    return {
        (run["label"], run["seed"]): {name: column for name, column in run["curve"].items() if name != "seconds"}
        for run in runs
        if run["group"] == group.title
    }


def model_step_times(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Modelled step times over links of several rates: measured compute time plus bytes divided by the rate.

    Only for runs on real processes, which were timed alone. Assumes no latency, and no overlap with communication.
    """
    rows = []
    for run in runs:
        if run["driver"] != "processes" or not run["steps"]:
            continue
        own = sum(run["times"].get(name, 0.0) for name in ("compute", "encode", "solver", "moments")) / run["steps"]
        sent = run["final"]["wire_bytes"] / run["steps"]
        for link, bits in LINKS.items():
            moved = 8 * sent / bits
            rows.append({
                "group": run["group"], "label": run["label"], "seed": run["seed"], "link": link,
                "step_s": own + moved, "transfer_s": moved, "compute_s": own,
            })  # fmt: skip
    return rows
