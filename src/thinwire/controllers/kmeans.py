"""Clusters of layers by size and error, each with one place on a grid from cheap to dear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..core import Choices, Context, Key, Plan, Program, derive_key
from .clusters import k_means, standardised
from .deciding import agreed
from .gathering import LOOK_AT, Gathered, Gathers, check_alpha, check_settings
from .knapsack import total
from .prices import FROM, cost_table, error_table
from .rungs import nearest, of_one_kind


@dataclass(frozen=True)
class KMeans(Gathers):
    """Group layers that are alike in size and error, and give large ones of small error the cheapest entries.

    When it decides and what it looks at are as in L-GreCo. `clusters` groups of layers by (log size, log error of what
    is written), ordered by size less error, get entries of a geometric grid over the bytes of their menus. While all
    errors add up to more than alpha times the reference's, every group moves one place up the grid; where that costs
    more than the reference, layers get the reference. As CGX chooses; details that it leaves open are ours.
    """

    every: int = 500
    start: int = 100
    window: int = 10
    clusters: int = 6
    alpha: float = 1.0
    statistics: str = "all"
    look_at: str = "pure"
    exact: bool = False
    choices: Choices = field(default=(), repr=False)

    def __post_init__(self) -> None:
        words = {"statistics": FROM, "look_at": LOOK_AT}
        check_alpha("KMeans", self.alpha)
        check_settings(self, ("every", "start", "window", "clusters"), words)

    def _decided(self, plan: Plan, state: Gathered, ctx: Context) -> Program[tuple[Plan, Any]]:
        errors = yield from error_table(self.choices, state.means(), ctx, self.statistics, self.exact)
        mine = plan
        if ctx.world.rank == 0 and int(state.counts.sum()):
            costs = cost_table(self.choices, state.means(), ctx)
            entries = self._entries(errors, costs, derive_key(ctx.seed, "clusters", ctx.step))
            mine = {spec.name: entry for (spec, _), entry in zip(self.choices, entries, strict=True)}
        return (yield from agreed(mine, self.choices)), ()

    def _entries(self, errors: Sequence[Tensor], costs: Sequence[Tensor], key: Key) -> list[int]:
        errors = [torch.nan_to_num(row, nan=0.0, posinf=torch.inf) for row in errors]
        reference = [menu.reference for _, menu in self.choices]
        lost = [float(row[at]) for row, at in zip(errors, reference, strict=True)]
        places = places_of([spec.numel for spec, _ in self.choices], lost, self.clusters, key)
        most = max(places)
        for shift in range(most + 1):
            found = [
                on_grid(cost, of_one_kind(menu), min(1.0, (place + shift) / max(1, most)) if error > 0 else 0.0)
                for cost, (_, menu), place, error in zip(costs, self.choices, places, lost, strict=True)
            ]
            if total(errors, found) <= self.alpha * total(errors, reference):
                return found if total(costs, found) <= total(costs, reference) else reference
        return reference


def places_of(sizes: Sequence[int], errors: Sequence[float], clusters: int, key: Key) -> list[int]:
    """Each layer's place, from 0 on, among the clusters: large layers of small error first."""
    smallest = min((error for error in errors if error > 0), default=1.0)
    rows = [[max(1, size), error if error > 0 else smallest] for size, error in zip(sizes, errors, strict=True)]
    members, centres = k_means(standardised(torch.tensor(rows, dtype=torch.float64).log()), clusters, key)
    order = (centres[:, 1] - centres[:, 0]).argsort(stable=True).tolist()
    return [order.index(member) for member in members.tolist()]


def on_grid(costs: Tensor, among: Sequence[int], share: float) -> int:
    """The entry nearest to a share of the way from the cheapest to the dearest, on a geometric grid."""
    prices = costs[list(among)].clamp(min=1e-3)
    low, high = float(prices.min()), float(prices.max())
    return nearest(costs, among, low * (high / low) ** share)
