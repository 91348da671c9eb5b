"""k-means over layers, as in CGX (Markov et al., 2022): layers alike in size and error get the same compression.

Ranks all-reduce one error a layer and option; rank 0 decides and broadcasts the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..core import Context, Key, LayerMenus, Plan, Program, derive_key
from .base import broadcast_plan
from .clusters import k_means, standardize
from .cost_search import find_nearest_option, same_method_options
from .estimates import ERRORS_FROM, compute_error_table
from .knapsack import sum_chosen
from .windowed import OBSERVED, WindowedController, WindowState, check_alpha, check_settings

KEY_WORD = "clusters"  # frozen: makes the random bits


@dataclass(frozen=True)
class KMeans(WindowedController):
    """Cluster layers by size and error; give large layers of small error the options with the fewest bytes.

    When it decides and what it observes are as in LGreCo. `clusters` clusters of layers by (log size, log error of the
    default), ordered by size less error, get options of a geometric grid over the bytes of their menus. While all
    errors add up to more than alpha times the default's, every cluster moves one place up the grid; a plan that costs
    more than the default is replaced by the default. Markov et al., 2022; what the paper leaves open is our decision.
    """

    every: int = 500
    start: int = 100
    window: int = 10
    clusters: int = 6
    alpha: float = 1.0
    errors_from: str = "all"
    observed: str = "gradient"
    exact_errors: bool = False
    menus: LayerMenus = field(default=(), repr=False)

    def __post_init__(self) -> None:
        check_alpha("KMeans", self.alpha)
        words = {"errors_from": ERRORS_FROM, "observed": OBSERVED}
        check_settings(self, ("every", "start", "window", "clusters"), words)

    def _decide(self, plan: Plan, state: WindowState, ctx: Context) -> Program[tuple[Plan, Any]]:
        means = state.means()
        errors = yield from compute_error_table(self.menus, means, ctx, self.errors_from, self.exact_errors)
        own = plan
        if ctx.world.rank == 0 and int(state.counts.sum()):
            costs = self._costs.compute(means.__getitem__, ctx)
            options = self._choose(errors, costs, derive_key(ctx.seed, KEY_WORD, ctx.step))
            own = {spec.name: option for (spec, _), option in zip(self.menus, options, strict=True)}
        return (yield from broadcast_plan(own, self.menus)), ()

    def _choose(self, errors: Sequence[Tensor], costs: Sequence[Tensor], key: Key) -> list[int]:
        error_rows = [torch.nan_to_num(row, nan=0.0, posinf=torch.inf).tolist() for row in errors]
        cost_rows = [row.tolist() for row in costs]
        defaults = [menu.default for _, menu in self.menus]
        default_errors = [row[option] for row, option in zip(error_rows, defaults, strict=True)]
        places = rank_clusters([spec.numel for spec, _ in self.menus], default_errors, self.clusters, key)
        last = max(places)
        for shift in range(last + 1):
            options = [
                grid_option(cost, among, min(1.0, (place + shift) / max(1, last)) if error > 0 else 0)
                for cost, among, place, error in zip(cost_rows, self._same_method, places, default_errors, strict=True)
            ]
            if sum_chosen(error_rows, options) <= self.alpha * sum_chosen(error_rows, defaults):
                return options if sum_chosen(cost_rows, options) <= sum_chosen(cost_rows, defaults) else defaults
        return defaults

    @cached_property
    def _same_method(self) -> list[list[int]]:
        return [same_method_options(menu) for _, menu in self.menus]


def rank_clusters(sizes: Sequence[int], errors: Sequence[float], clusters: int, key: Key) -> list[int]:
    """The place of each layer's cluster, from 0 on: clusters of large layers of small error come first."""
    smallest = min((error for error in errors if error > 0), default=1.0)
    rows = [[max(1, size), error if error > 0 else smallest] for size, error in zip(sizes, errors, strict=True)]
    members, centers = k_means(standardize(torch.tensor(rows, dtype=torch.float64).log()), clusters, key)
    order = (centers[:, 1] - centers[:, 0]).argsort(stable=True).tolist()
    return [order.index(member) for member in members.tolist()]


def grid_option(costs: Sequence[float], among: Sequence[int], share: float) -> int:
    """The option nearest to a share of the way from the fewest bytes to the most, on a geometric grid."""
    some_costs = [costs[at] for at in among]
    low, high = max(1e-3, min(some_costs)), max(1e-3, max(some_costs))
    return find_nearest_option(costs, among, low * (high / low) ** share)
