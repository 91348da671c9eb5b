"""Runs by group and label, and statistics over seeds: mean ± standard deviation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from thinwire.core import format_bytes

from .scales import UNITS, choose_unit, format_number, format_seconds, to_finite

Run: TypeAlias = Mapping[str, Any]  # one entry of the result's "runs", as json.load returns it
Groups: TypeAlias = dict[str, dict[str, list[Run]]]  # title of the group -> label -> its seeds
Column: TypeAlias = list[float | None]


CELL_FORMATS: dict[str, Callable[[float], str]] = {  # of a mean in a table
    "number": lambda value: format_number(value, pad=True),
    "percent": lambda value: f"{100 * value:.1f} %",
    "steps": lambda value: f"{value:,.0f}",
    "bytes": format_bytes,
    "seconds": format_seconds,
}


class Spread(NamedTuple):
    """Statistics over seeds; the mean exists only if every seed has a finite value."""

    mean: float | None
    std: float | None  # of the sample, n - 1 below; None for a single seed
    values: tuple[float | None, ...]


def group_runs(runs: Sequence[Run]) -> Groups:
    """Return the runs by group and label in file order; a group with several links becomes one group per link."""
    links: dict[str, dict[str, None]] = {}
    for run in runs:
        links.setdefault(run["group"], {})[_link_name(run)] = None
    groups: Groups = {}
    for run in runs:
        title, link = run["group"], _link_name(run)
        if len(links[title]) > 1:
            title += f", link {link}"
        groups.setdefault(title, {}).setdefault(run["label"], []).append(run)
    return groups


def _link_name(run: Run) -> str:
    return str(run.get("link") or "none")


def compute_spread(values: Sequence[object]) -> Spread:
    """Return mean and standard deviation over seeds."""
    numbers = tuple(to_finite(value) for value in values)
    known = [number for number in numbers if number is not None]
    if not numbers or len(known) < len(numbers):
        return Spread(None, None, numbers)
    mean = math.fsum(known) / len(known) if min(known) < max(known) else known[0]
    if len(known) == 1:
        return Spread(mean, None, numbers)
    return Spread(mean, math.sqrt(math.fsum((n - mean) ** 2 for n in known) / (len(known) - 1)), numbers)


def format_spread(found: Spread, unit: str) -> tuple[str, str]:
    """Return the mean and, in the same unit, "± standard deviation", empty if all seeds are equal.

    Without a mean, return a dash and how many seeds have a finite value.
    """
    if found.mean is None:
        count = sum(value is not None for value in found.values)
        state = "reach it" if unit == "steps" else "finite"
        return "–", f"{count} of {len(found.values)} {state}" if len(found.values) > 1 and count else ""
    if not found.std:
        return CELL_FORMATS[unit](found.mean), ""
    return CELL_FORMATS[unit](found.mean), f"± {format_number(found.std / choose_unit(unit, found.mean)[0], 2)}"


def format_seeds(found: Spread, unit: str) -> str:
    """Return each seed's value for a tooltip; bytes exactly."""
    write = UNITS.get(unit, UNITS["number"]) if unit != "bytes" else lambda value: f"{value:,.0f} bytes"
    texts = [None if value is None else write(value) for value in found.values]
    if all(value is None for value in texts):
        return ""
    if len(texts) == 1:
        return texts[0] or ""
    return f"{len(texts)} seeds: " + "; ".join(value or "–" for value in texts)


def average_curves(runs: Sequence[Run]) -> tuple[dict[str, Column], dict[str, Column]]:
    """Return the columns of the mean curve and, with several seeds, of its standard deviation.

    Seeds are compared at the same step, so a curve ends where the first of its seeds ends, and has a gap where one of
    them is not finite. Bytes and seconds are averaged like everything else.
    """
    curves = [run.get("curve", {}) for run in runs]
    shared = [name for name in curves[0] if all(name in curve for curve in curves)]
    if len(curves) == 1:
        return {name: [to_finite(value) for value in curves[0][name]] for name in shared}, {}
    if "step" not in shared:
        return {}, {}
    rows = [{step: at for at, step in enumerate(curve["step"])} for curve in curves]
    steps = [step for step in curves[0]["step"] if all(step in row for row in rows)]
    means: dict[str, Column] = {}
    stds: dict[str, Column] = {}
    for name in shared:
        found = [
            compute_spread([curve[name][row[step]] for curve, row in zip(curves, rows, strict=True)]) for step in steps
        ]
        means[name], stds[name] = [one.mean for one in found], [one.std for one in found]
    return means, stds


def average_parts(runs: Sequence[Run], key: str) -> dict[str, float]:
    """Return the means over seeds of the named numbers that runs have under `key`; only positive ones count."""
    parts: dict[str, list[float]] = {}
    records = [run[key] for run in runs if run.get(key)]
    for record in records:
        for name, value in record.items():
            number = to_finite(value)
            if number is not None and number > 0:
                parts.setdefault(name, []).append(number)
    return {name: math.fsum(values) / len(records) for name, values in parts.items()}


def assign_styles(groups: Groups) -> dict[str, int]:
    """Assign to each label the first style that no label of its groups has; a label has one style in all groups."""
    styles: dict[str, int] = {}
    labels = dict.fromkeys(label for members in groups.values() for label in members)
    for label in labels:
        beside = set().union(*(members for members in groups.values() if label in members))
        taken = {styles[other] for other in beside if other in styles}
        styles[label] = next(index for index in range(len(labels)) if index not in taken)
    return styles
