"""Runs by group and label, and what several seeds of one method say together: mean ± standard deviation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from thinwire.core import format_bytes

from .scales import UNITS, factor_of, finite, format_number, format_seconds

Run: TypeAlias = Mapping[str, Any]  # one entry of the result's "runs", as json.load gives it
Groups: TypeAlias = dict[str, dict[str, list[Run]]]  # title of the group -> label -> its seeds
Column: TypeAlias = list[float | None]


SHORTLY: dict[str, Callable[[float], str]] = {  # as tables write a number that stands alone
    "number": lambda value: format_number(value, pad=True),
    "percent": lambda value: f"{100 * value:.1f} %",
    "steps": lambda value: f"{value:,.0f}",
    "bytes": format_bytes,
    "seconds": format_seconds,
}


class Spread(NamedTuple):
    """What the seeds gave; the mean exists only if every one of them gave a finite number."""

    mean: float | None
    std: float | None  # of the sample, n - 1 below; None for a single seed
    values: tuple[float | None, ...]


def gather_groups(runs: Sequence[Run]) -> Groups:
    """Return the runs by group and label, all in the order of the file; a group over several links is one per link."""
    links: dict[str, dict[str, None]] = {}
    for run in runs:
        links.setdefault(run["group"], {})[_link(run)] = None
    groups: Groups = {}
    for run in runs:
        title, link = run["group"], _link(run)
        if len(links[title]) > 1:
            title += f", link {link}"
        groups.setdefault(title, {}).setdefault(run["label"], []).append(run)
    return groups


def _link(run: Run) -> str:
    return str(run.get("link") or "none")


def spread(values: Sequence[object]) -> Spread:
    """Return mean and standard deviation over seeds."""
    numbers = tuple(finite(value) for value in values)
    known = [number for number in numbers if number is not None]
    if not numbers or len(known) < len(numbers):
        return Spread(None, None, numbers)
    mean = math.fsum(known) / len(known) if min(known) < max(known) else known[0]
    if len(known) == 1:
        return Spread(mean, None, numbers)
    return Spread(mean, math.sqrt(math.fsum((n - mean) ** 2 for n in known) / (len(known) - 1)), numbers)


def write_spread(found: Spread, unit: str) -> tuple[str, str]:
    """Write the mean and, in the same unit, "± standard deviation", which is nothing if all seeds are equal.

    Without a mean these are a dash and how many seeds have a number.
    """
    if found.mean is None:
        count = sum(value is not None for value in found.values)
        did = "reach it" if unit == "steps" else "finite"
        return "–", f"{count} of {len(found.values)} {did}" if len(found.values) > 1 and count else ""
    if not found.std:
        return SHORTLY[unit](found.mean), ""
    return SHORTLY[unit](found.mean), f"± {format_number(found.std / factor_of(unit, found.mean)[0], 2)}"


def tell_seeds(found: Spread, unit: str) -> str:
    """Write what each seed gave, for who points at a cell; exactly, if these are bytes."""
    write = UNITS.get(unit, UNITS["number"]) if unit != "bytes" else lambda value: f"{value:,.0f} bytes"
    told = [None if value is None else write(value) for value in found.values]
    if all(value is None for value in told):
        return ""
    if len(told) == 1:
        return told[0] or ""
    return f"{len(told)} seeds: " + "; ".join(value or "–" for value in told)


def mean_curve(runs: Sequence[Run]) -> tuple[dict[str, Column], dict[str, Column]]:
    """Return the columns of the mean curve and, with several seeds, of its standard deviation.

    Seeds are compared at the same step, so a curve ends where the first of its seeds ends, and has a gap where one of
    them is not finite. Bytes and seconds are averaged like everything else.
    """
    curves = [run.get("curve", {}) for run in runs]
    shared = [name for name in curves[0] if all(name in curve for curve in curves)]
    if len(curves) == 1:
        return {name: [finite(value) for value in curves[0][name]] for name in shared}, {}
    if "step" not in shared:
        return {}, {}
    rows = [{step: at for at, step in enumerate(curve["step"])} for curve in curves]
    steps = [step for step in curves[0]["step"] if all(step in row for row in rows)]
    means: dict[str, Column] = {}
    stds: dict[str, Column] = {}
    for name in shared:
        found = [spread([curve[name][row[step]] for curve, row in zip(curves, rows, strict=True)]) for step in steps]
        means[name], stds[name] = [one.mean for one in found], [one.std for one in found]
    return means, stds


def mean_parts(runs: Sequence[Run], key: str) -> dict[str, float]:
    """Return the means over seeds of what a run has under `key` by name; what is not positive is left out."""
    parts: dict[str, list[float]] = {}
    having = [run[key] for run in runs if run.get(key)]
    for held in having:
        for name, value in held.items():
            number = finite(value)
            if number is not None and number > 0:
                parts.setdefault(name, []).append(number)
    return {name: math.fsum(values) / len(having) for name, values in parts.items()}


def method_styles(groups: Groups) -> dict[str, int]:
    """Give each label the first style that no other label of its group has; a method looks the same in all groups."""
    styles: dict[str, int] = {}
    labels = dict.fromkeys(label for members in groups.values() for label in members)
    for label in labels:
        beside = set().union(*(members for members in groups.values() if label in members))
        taken = {styles[other] for other in beside if other in styles}
        styles[label] = next(index for index in range(len(labels)) if index not in taken)
    return styles
