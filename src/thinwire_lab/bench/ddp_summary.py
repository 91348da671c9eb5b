"""Tables of `thinwire bench ddp`: medians with intervals of one run, and medians of several runs with their range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .ddp_bound import Bound
from .ddp_methods import BARE_HOOK, DDPMethod

_BOOTSTRAP_DRAWS = 2000


@dataclass(frozen=True)
class Estimate:
    """A median with its 95 % bootstrap interval; of several runs, the median of their medians with their range."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class DDPRow:
    """Figures of one method.

    Attributes:
        floors: step time divided by that of the step of the same turn that sends nothing.
        sent_mb: by one rank in a step.
        cpu_ms: of one rank's process in a step.
        minus_bare_ms: step time minus that of the bare hook in the same turn; for thinwire's methods.
        bound: modelled, never measured.
        runs: number of runs that have this row.
    """

    method: str
    step_ms: Estimate
    floors: Estimate
    sent_mb: float
    cpu_ms: float
    minus_bare_ms: Estimate | None = None
    bound: Bound | None = None
    runs: int = 1


def summarize(methods: Sequence[DDPMethod], results: Sequence[Any], shared: bool) -> list[DDPRow]:
    """Rows from the figures of all ranks. shared: both ranks use one device, so that bytes are counted twice."""
    ranks = np.array(results)  # (rank, step, method, figure)
    seconds, busy, sent = ranks[..., 0].max(0), ranks[..., 1].mean(0), ranks[..., 2].mean(0) / (2 if shared else 1)
    bare = next((at for at, method in enumerate(methods) if method.label == BARE_HOOK), None)
    rows = []
    for at, method in enumerate(methods):
        is_compared = bare is not None and method.label.startswith("thinwire")
        rows.append(
            DDPRow(
                method.label,
                estimate(1e3 * seconds[:, at]),
                estimate(seconds[:, at] / seconds[:, 0]),
                float(np.median(sent[:, at])) / 1e6,
                1e3 * float(np.median(busy[:, at])),
                estimate(1e3 * (seconds[:, at] - seconds[:, bare])) if is_compared else None,
            )
        )
    return rows


def estimate(values: np.ndarray[Any, Any]) -> Estimate:
    """The median with its 95 % bootstrap interval."""
    drawn = np.random.default_rng(0).choice(values, (_BOOTSTRAP_DRAWS, len(values)))
    low, high = np.percentile(np.median(drawn, axis=1), (2.5, 97.5))
    return Estimate(float(np.median(values)), float(low), float(high))


def combine_runs(runs: Sequence[Sequence[DDPRow]]) -> list[DDPRow]:
    """One row per method: the median of the runs' medians with their range. One run is returned as it is."""
    if len(runs) == 1:
        return list(runs[0])
    labels = dict.fromkeys(row.method for run in runs for row in run)
    return [_combine_rows([row for run in runs for row in run if row.method == label]) for label in labels]


def _combine_rows(rows: Sequence[DDPRow]) -> DDPRow:
    bounds = [row.bound for row in rows if row.bound is not None]
    differences = [row.minus_bare_ms for row in rows if row.minus_bare_ms is not None]
    return replace(
        rows[0],
        step_ms=_median_of_medians([row.step_ms for row in rows]),
        floors=_median_of_medians([row.floors for row in rows]),
        sent_mb=float(np.median([row.sent_mb for row in rows])),
        cpu_ms=float(np.median([row.cpu_ms for row in rows])),
        minus_bare_ms=_median_of_medians(differences) if differences else None,
        bound=_median_bound(bounds) if bounds else None,
        runs=len(rows),
    )


def _median_of_medians(estimates: Sequence[Estimate]) -> Estimate:
    medians = [each.median for each in estimates]
    return Estimate(float(np.median(medians)), min(medians), max(medians))


def _median_bound(bounds: Sequence[Bound]) -> Bound:
    figures = np.median([[b.step_ms, b.floors, b.passes_ms, b.exposed_ms] for b in bounds], axis=0)
    return Bound(*map(float, figures))
