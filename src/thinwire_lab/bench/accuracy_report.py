"""Tables, curves and page of `thinwire bench accuracy`, from the runs that are stored in its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ..measuring.folder import RunFolder, write_json
from ..reporting import write_figures, write_report
from ..reporting.plots import COSTS, MEASURES
from ..reporting.scales import Axis, to_finite
from ..reporting.seeds import average_curves, compute_spread, format_spread
from .accuracy import METHODS, SEEDS, AccuracyTask, read_runs

MIN_RATIO, MAX_RATIO = 3.0, 10.0  # step of plain DDP / its compute, for which the protocol is meant
SMOOTHED = 2  # evaluations whose mean must pass the target
COLUMNS = (
    "method", "seeds", "time to target", "sent to target", "faster than plain DDP", "final", "step", "step / compute",
)  # fmt: skip

Run = Mapping[str, Any]  # as `perform` stores it


class TargetReached(NamedTuple):
    """When a run reached its target: seconds of training, and bytes that one worker sent until then."""

    seconds: float
    sent_bytes: float


def find_target(curve: Mapping[str, Sequence[Any]], metric: str, target: float) -> TargetReached | None:
    """The first evaluation at which the mean of it and the one before passes the target; None if there is none."""
    values = [to_finite(value) for value in curve[metric]]
    for at in range(SMOOTHED - 1, len(values)):
        last = [value for value in values[at + 1 - SMOOTHED : at + 1] if value is not None]
        mean = sum(last) / SMOOTHED
        passes = mean >= target if is_raised(metric) else mean <= target
        if len(last) == SMOOTHED and passes:
            return TargetReached(curve["seconds"][at], curve["wire_bytes"][at])
    return None


def is_raised(metric: str) -> bool:
    """Whether larger values of the metric are better."""
    return metric == "accuracy"


def build_result(folder: RunFolder, targets: Mapping[str, float] | None = None) -> dict[str, Any]:
    """A result as those of experiments, so that `thinwire show` and `thinwire report` read it, too.

    Args:
        folder: of the runs.
        targets: by task, instead of the stored ones.
    """
    runs, about = list(read_runs(folder)), folder.read("about.json")
    tables, figures, checks = [], [], []
    for name in dict.fromkeys(run["task"] for run in runs):
        members = [run for run in runs if run["task"] == name]
        task = AccuracyTask.from_json(members[-1]["settings"])
        task = replace(task, target=(targets or {}).get(name, task.target))
        tables.append(build_accuracy_table(name, task, members))
        figures += build_figures(name, task, [run for run in members if "error" not in run])
        checks += build_checks(name, task, members)
    hours = sum(run["machine_s"] for run in runs) / 3600
    return {
        "name": "accuracy", "title": "Time to accuracy",
        "description": "Two workers of one thread on a shaped link. The clock stops for evaluations; the target is "
        f"reached when the mean of the last two evaluations passes it. {len(runs)} runs took {hours:.2f} hours of this "
        "machine, starts and evaluations included.",
        "command": about["command"], "started": about["started"], "versions": about["versions"],
        "machine": about["machine"], "tables": tables, "figures": figures, "checks": checks,
        "config": {run["task"]: run["settings"] for run in runs},
    }  # fmt: skip


def build_accuracy_table(name: str, task: AccuracyTask, runs: Sequence[Run]) -> dict[str, Any]:
    """One row per method, with mean ± standard deviation over its seeds."""
    by_method = {key: [run for run in runs if run["method"] == key] for key in METHODS}
    rows = [_build_row(key, task, members, by_method["plain"]) for key, members in by_method.items() if members]
    facts: Mapping[str, Any] = next((run["facts"] for run in runs if "facts" in run), {})
    level = _format(task.metric, task.target)
    title = f"{name}, {task.rate}: target {task.metric} {level}"
    note = (
        f"{facts.get('model', '')} with {facts.get('parameters', 0):,} parameters, {task.steps} steps of "
        f"{facts.get('batch', 0)} examples a worker; {facts.get('cut', '')}. Evaluated every {task.every} steps."
    )
    return {"title": title, "note": note, "columns": list(COLUMNS), "rows": rows}


def _build_row(method: str, task: AccuracyTask, runs: Sequence[Run], plain: Sequence[Run]) -> list[str]:
    finished = [run for run in runs if "error" not in run]
    if not finished:
        return [METHODS[method].label, f"{len(runs)} failed", *["–"] * (len(COLUMNS) - 2)]
    reached = [find_target(run["curve"], task.metric, task.target) for run in finished]
    unit = MEASURES[task.metric].unit
    return [
        METHODS[method].label,
        _describe_seeds(len(finished), len(runs) - len(finished)),
        _describe_values([found and found.seconds for found in reached], "seconds"),
        _describe_values([found and found.sent_bytes for found in reached], "bytes"),
        _describe_speedup(task, plain, finished),
        _describe_values([run["curve"][task.metric][-1] for run in finished], unit),
        _describe_values([_step_s(run) for run in finished], "seconds"),
        f"{_mean_ratio(finished):.2f}",
    ]


def _describe_seeds(finished: int, failed: int) -> str:
    text = str(finished) if finished >= len(SEEDS) else f"{finished} only"
    return text + (f", {failed} failed" if failed else "")


def _describe_values(values: Sequence[float | None], unit: str) -> str:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return f"{len(known)} of {len(values)} reach it"
    return " ".join(text for text in format_spread(compute_spread(values), unit) if text)


def _describe_speedup(task: AccuracyTask, plain: Sequence[Run], own: Sequence[Run]) -> str:
    """Time of plain DDP divided by that of the method, both to the target, over the seeds that both have."""
    times = [
        {
            run["seed"]: found.seconds
            for run in runs
            if "error" not in run and (found := find_target(run["curve"], task.metric, task.target))
        }
        for runs in (plain, own)
    ]
    shared = sorted(times[0].keys() & times[1].keys())
    if not shared or len(times[1]) < len(own):
        return "–"
    return f"{sum(times[0][seed] for seed in shared) / sum(times[1][seed] for seed in shared):.2f}×"


def build_figures(name: str, task: AccuracyTask, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The metric against seconds and against bytes: one curve per method, the mean over its seeds, and the target."""
    axes = {"seconds": replace(COSTS["seconds"], title="seconds of training"), "wire_bytes": COSTS["wire_bytes"]}
    means = {key: average_curves(found)[0] for key in METHODS if (found := [r for r in runs if r["method"] == key])}
    return [
        {
            "title": f"{name}: {task.metric} against {'seconds' if cost == 'seconds' else 'bytes sent'}",
            "x": _axis(axis), "y": _axis(MEASURES[task.metric]),
            "curves": _build_curves(task, means, cost),
        }
        for cost, axis in axes.items() if means
    ]  # fmt: skip


def _build_curves(task: AccuracyTask, means: Mapping[str, Mapping[str, Any]], cost: str) -> list[dict[str, Any]]:
    styles = {key: style for style, key in enumerate(METHODS)}
    curves = [
        {"label": METHODS[key].label, "style": styles[key], "x": columns[cost], "y": columns[task.metric]}
        for key, columns in means.items()
    ]
    last = max(columns[cost][-1] for columns in means.values())
    start = min(columns[cost][1] for columns in means.values())  # a logarithmic axis has no 0
    level = f"target {_format(task.metric, task.target)}"
    return [*curves, {"label": level, "style": len(METHODS), "x": [start, last], "y": [task.target] * 2}]


def build_checks(name: str, task: AccuracyTask, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Whether the link is as slow as it should be, and plain DDP reaches the target."""
    plain = [run for run in runs if run["method"] == "plain" and "error" not in run]
    if not plain:
        return []
    ratio = _mean_ratio(plain)
    reached = sum(find_target(run["curve"], task.metric, task.target) is not None for run in plain)
    return [
        {
            "text": f"{name}: plain DDP's step is {MIN_RATIO:g} to {MAX_RATIO:g} times its compute",
            "holds": MIN_RATIO <= ratio <= MAX_RATIO, "detail": f"{ratio:.2f}",
        },
        {
            "text": f"{name}: plain DDP reaches the target with every seed",
            "holds": reached == len(plain), "detail": f"{reached} of {len(plain)}",
        },
    ]  # fmt: skip


def store_report(folder: RunFolder, result: Mapping[str, Any]) -> tuple[Path, list[Path]]:
    """Write result.json, report.html and the figures into the folder; returns the page and the figures."""
    write_json(folder.path / "result.json", result)
    page = folder.path / "report.html"
    write_report(result, page)
    return page, write_figures(result, folder.path / "figures")


def _step_s(run: Run) -> float:
    return float(run["curve"]["seconds"][-1] / run["curve"]["step"][-1])


def _mean_ratio(runs: Sequence[Run]) -> float:
    return sum(_step_s(run) / float(run["compute_s"]) for run in runs) / len(runs)


def _format(metric: str, value: float) -> str:
    return MEASURES[metric].write(value)


def _axis(axis: Axis) -> dict[str, Any]:
    return {"title": axis.title, "unit": axis.unit, "log": axis.log}
