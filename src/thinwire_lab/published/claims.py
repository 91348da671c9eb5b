"""What was published beside what was measured: tables that the published experiments share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Claim:
    """A published outcome, whether it holds here, and the figures that tell."""

    text: str
    holds: bool
    figures: Mapping[str, float]

    @property
    def verdict(self) -> str:
        return "yes" if self.holds else "no"


@dataclass(frozen=True)
class RangeClaim:
    """A published range, and the figures that are to lie in it: what is above it does not confirm it either."""

    text: str
    low: float
    high: float
    figures: Mapping[str, float]

    @property
    def verdict(self) -> str:
        """yes: all figures are in the range. Else how many are, and on which side of it the others lie."""
        sides = ["below" if v < self.low else "above" if v > self.high else "" for v in self.figures.values()]
        if any(math.isnan(value) for value in self.figures.values()):
            return "no: not a number"
        outside = [side for side in ("below", "above") if side in sides]
        share = "no" if all(sides) else f"{sides.count('')} of {len(sides)}"
        return f"{share}: {' and '.join(outside)} the range" if outside else "yes"


def claims_table(title: str, claims: Sequence[Claim | RangeClaim], digits: int = 2, note: str = "") -> dict[str, Any]:
    rows = [
        [claim.text, claim.verdict, "; ".join(f"{k} {v:.{digits}f}" for k, v in claim.figures.items())]
        for claim in claims
    ]
    note = " ".join(filter(None, ("Small differences are within what another seed changes.", note)))
    return {"title": title, "note": note, "columns": ["claim", "holds", "figures"], "rows": rows}


def final_of(run: Mapping[str, Any], measure: str) -> float:
    """Not a number where a run has none."""
    value = run["final"].get(measure)
    return math.nan if value is None else float(value)


def best_of(run: Mapping[str, Any], measure: str) -> float:
    value = run["best"].get(measure)
    return math.nan if value is None else float(value)


def share_of_solver(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Clock readings of the runs that look for w."""
    rows = []
    for run in runs:
        times = {name: seconds for name, seconds in run["times"].items() if name != "measure"}
        if "solver" in times:
            total = sum(times.values())
            rows.append([run["label"], round(total, 1), round(times["solver"], 1), times["solver"] / total])
    return {
        "title": "Time spent on finding w",
        "note": "Seconds of computing, encoding and solving, while other runs shared the machine.",
        "columns": ["method", "seconds", "of these in the solver", "share"],
        "rows": rows,
    }
