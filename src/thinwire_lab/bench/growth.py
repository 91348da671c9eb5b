"""`thinwire bench growth`: an exchange by the number of parameters and by the number of workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import growth_sizes, growth_workers
from .growth_sizes import SizeRow
from .growth_workers import WorkersRow


@dataclass(frozen=True)
class GrowthPlan:
    """What to measure.

    Attributes:
        millions: numbers of parameters of the first table, in millions.
        workers: numbers of workers of the second table.
        worker_millions: parameters in the second table, in millions.
        rate: of the links in the second table.
        steps: measured steps of each row.
    """

    millions: Sequence[float] = growth_sizes.MILLIONS
    workers: Sequence[int] = growth_workers.WORKERS
    worker_millions: float = growth_workers.MILLIONS
    rate: str = "100mbit"
    steps: int = 5


QUICK = GrowthPlan(millions=(0.5, 1.0), workers=(3,), worker_millions=0.5, rate="1gbit", steps=1)


def measure_sizes(plan: GrowthPlan, on_progress: Callable[[str], None]) -> tuple[list[SizeRow], list[str]]:
    """Rows of the first table, and what was left out, because it needs more memory than there is."""
    rows, left_out = [], []
    for composition in growth_sizes.COMPOSITIONS:
        for millions in plan.millions:
            needed, available = growth_sizes.needed_bytes(millions), growth_sizes.available_bytes()
            if needed > available:
                need = f"needs about {needed / 1e9:.1f} GB, {available / 1e9:.1f} GB are available"
                left_out.append(f"{composition}, {millions:g} M parameters: left out, {need}")
                continue
            rows.append(growth_sizes.measure(millions, composition, plan.steps, on_progress))
    return rows, left_out


def measure_workers(plan: GrowthPlan, on_progress: Callable[[str], None]) -> list[WorkersRow]:
    """Rows of the second table. Needs root."""
    rows = []
    for workers in plan.workers:
        texts, millions = growth_workers.COMPOSITIONS, plan.worker_millions
        rows += growth_workers.measure(workers, texts, plan.rate, plan.steps, millions, on_progress)
    return rows
