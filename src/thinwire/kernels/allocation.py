"""One candidate for each layer, so that they cost least together and their errors keep within a budget."""

from __future__ import annotations

import torch
from torch import Tensor

NONE = torch.zeros(0, dtype=torch.int64)


def cheapest(costs: Tensor, errors: Tensor, budget: int) -> Tensor:
    """The candidate of each layer (int64), or nothing where no choice keeps within the budget.

    costs, errors: layers × candidates. Costs are whole numbers, as float64, whose sums stay below 2^53. Errors are
    whole units of the budget, 0 or more, as int64; one beyond the budget is never chosen, so that rows may be filled up
    with such. Among choices that cost the same, the least error, then the first candidates of the last layers.
    """
    checked(costs, errors, budget)
    tables = torch.full((len(costs) + 1, budget + 1), torch.inf, dtype=torch.float64)
    tables[0, 0] = 0
    for layer, (layer_costs, layer_errors) in enumerate(zip(costs.tolist(), errors.tolist(), strict=True)):
        before, after = tables[layer], tables[layer + 1]
        for cost, error in zip(layer_costs, layer_errors, strict=True):
            if error <= budget:
                torch.minimum(after[error:], before[: budget + 1 - error] + cost, out=after[error:])
    return followed_back(tables, costs, errors)


def checked(costs: Tensor, errors: Tensor, budget: int) -> None:
    if costs.shape != errors.shape or costs.dim() != 2:
        raise ValueError(f"cheapest: costs and errors are layers x candidates, got {costs.shape} and {errors.shape}")
    if budget < 0 or bool((errors < 0).any()) or not bool(((costs >= 0) & (costs < 2.0**53)).all()):
        raise ValueError(f"cheapest: errors, costs (below 2^53) and the budget are not negative, got {budget}")


def followed_back(tables: Tensor, costs: Tensor, errors: Tensor) -> Tensor:
    """tables[l, e]: what the first l layers cost at least if their errors are e together."""
    left = int(tables[-1].argmin())  # the first of equals
    if not bool(tables[-1, left] < torch.inf):
        return NONE.clone()
    choice = torch.empty(len(costs), dtype=torch.int64)
    for layer in range(len(costs) - 1, -1, -1):
        places = left - errors[layer]
        sums = torch.where(places >= 0, tables[layer][places.clamp(min=0)] + costs[layer], torch.inf)
        choice[layer] = (sums == tables[layer + 1, left]).int().argmax()
        left -= int(errors[layer, choice[layer]])
    return choice
