"""Claims of a publication beside what was measured, and tables that the published experiments share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Claim:
    """A published claim, whether it holds here, and the figures it is judged by."""

    text: str
    holds: bool
    figures: Mapping[str, float]

    @property
    def verdict(self) -> str:
        """yes or no."""
        return "yes" if self.holds else "no"


@dataclass(frozen=True)
class RangeClaim:
    """A published range and the figures that should lie in it; a figure above the range does not confirm it."""

    text: str
    low: float
    high: float
    figures: Mapping[str, float]

    @property
    def verdict(self) -> str:
        """yes if all figures are in the range; else how many are, and on which side the others lie."""
        sides = ["below" if v < self.low else "above" if v > self.high else "" for v in self.figures.values()]
        if any(math.isnan(value) for value in self.figures.values()):
            return "no: not a number"
        outside = [side for side in ("below", "above") if side in sides]
        share = "no" if all(sides) else f"{sides.count('')} of {len(sides)}"
        return f"{share}: {' and '.join(outside)} the range" if outside else "yes"


def build_claims_table(
    title: str, claims: Sequence[Claim | RangeClaim], digits: int = 2, note: str = ""
) -> dict[str, Any]:
    """Return a table of claims with verdicts and figures."""
    rows = [
        [claim.text, claim.verdict, "; ".join(f"{k} {v:.{digits}f}" for k, v in claim.figures.items())]
        for claim in claims
    ]
    note = " ".join(filter(None, ("Small differences may change with the seed.", note)))
    return {"title": title, "note": note, "columns": ["claim", "holds", "figures"], "rows": rows}


def final_value(run: Mapping[str, Any], measure: str) -> float:
    """Return the last value of a measure; NaN where the run has none."""
    value = run["final"].get(measure)
    return math.nan if value is None else float(value)


def best_value(run: Mapping[str, Any], measure: str) -> float:
    """Return the best value of a measure; NaN where the run has none."""
    value = run["best"].get(measure)
    return math.nan if value is None else float(value)


def build_solver_time_table(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the time that runs with an importance vector w spent in its solver."""
    rows = []
    for run in runs:
        times = {name: seconds for name, seconds in run["times"].items() if name != "measure"}
        if "solver" in times:
            total = sum(times.values())
            rows.append([run["label"], round(total, 1), round(times["solver"], 1), times["solver"] / total])
    return {
        "title": "Time spent on solving for w",
        "note": "Seconds of computing, encoding and solving; other runs shared the machine.",
        "columns": ["method", "seconds", "of these in the solver", "share"],
        "rows": rows,
    }
