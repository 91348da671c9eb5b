"""A config as a plan: a job for every method, group and seed; and what all runs show together."""

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
from .checking import check_methods

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LINKS = {"100 Mbit/s": 1e8, "1 Gbit/s": 1e9, "10 Gbit/s": 1e10}


def read_experiment(path: Path) -> Experiment:
    """Out of a TOML file, or of the config.json that a run left."""
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


def plan_of(experiment: Experiment, data: str | None = None, finish: Any = None, more: Sequence[Job] = ()) -> RunPlan:
    """Data are looked for, and all that cannot be is refused, here: before any job starts.

    more: jobs beside the runs; then `finish` is given their results as well.
    """
    task = make_task(experiment.task.name, experiment.task.settings, data)
    steps = {}
    for group in experiment.groups:
        own = experiment.task_of(group)
        theirs = make_task(own.name, own.settings, data)
        theirs.prepare(group.workers, Split.parse(group.split))
        check_methods(experiment, group, theirs)
        steps[group.title] = group.steps or steps_of(experiment, group, theirs.about())
    head = {
        "title": experiment.title or experiment.name, "about": experiment.about, "config": experiment.to_dict(),
        "task": task.about(),
        "target": None if experiment.target is None else vars(experiment.target) | {},
    }  # fmt: skip
    jobs = [
        _job(experiment, at, group, label, seed, steps[group.title], data)
        for at, group in enumerate(experiment.groups)
        for label in (method.label for method in experiment.methods_of(group))
        for seed in experiment.seeds
    ]
    together = partial(shown_together, experiment, finish, len(jobs))
    return RunPlan(experiment.name, head, [*jobs, *more], together, runs=len(jobs))


def steps_of(experiment: Experiment, group: RunGroup, about: Mapping[str, Any]) -> int:
    if experiment.steps:
        return experiment.steps
    examples, batch = about.get("examples"), about.get("batch")
    if not isinstance(examples, int) or not isinstance(batch, int):
        raise ConfigError(f"epochs: this task has no epochs (batch is {batch!r}); give steps")
    each = batch * int(about.get("context", 1))  # text has its length in tokens, and batches in windows
    return math.ceil(experiment.epochs * examples / (each * group.workers))


def _job(experiment: Experiment, at: int, group: RunGroup, label: str, seed: int, steps: int, data: str | None) -> Job:
    real = group.driver == "processes"
    function = f"{__package__}.training:{'on_one_rank' if real else 'in_lockstep'}"
    argument = {
        "experiment": experiment.to_dict(), "group": at, "label": label, "seed": seed, "steps": steps, "data": data,
    }  # fmt: skip
    seeds = f", seed {seed}" if len(experiment.seeds) > 1 else ""
    return Job(
        key=f"{at}-{slugify(label)}-{experiment.methods_of(group).index(_method(experiment, label))}-seed{seed}",
        function=function, argument=argument, title=f"{label}{seeds} ({group.title})", link=group.link,
        ranks=group.workers if real else 1, gather=f"{__package__}.training:together" if real else "",
    )  # fmt: skip


def _method(experiment: Experiment, label: str) -> Any:
    return next(method for method in experiment.methods if method.label == label)


def shown_together(experiment: Experiment, finish: Any, count: int, results: list[dict[str, Any]]) -> dict[str, Any]:
    runs, more = results[:count], results[count:]
    shown = {"checks": parity_checks(experiment, runs), "modelled": modelled(runs)}
    if finish is None:
        return shown
    return shown | dict(finish(runs, more) if more else finish(runs))


def parity_checks(experiment: Experiment, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Does each real run give the figures of the lockstep run with the same workers and split, to the last bit?"""
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
    """Without the clock's column."""
    return {
        (run["label"], run["seed"]): {name: column for name, column in run["curve"].items() if name != "seconds"}
        for run in runs
        if run["group"] == group.title
    }


def modelled(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a step would take over links of some rates: measured computing and encoding, bytes divided by the rate.

    Of runs on real processes, whose clocks had the cores to themselves. Nothing overlaps, and latency is left out.
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
