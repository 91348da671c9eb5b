"""Multiple-choice knapsack: one option per layer, with the least total cost within an error budget."""

from __future__ import annotations

import torch
from torch import Tensor

NONE = torch.zeros(0, dtype=torch.int64)


def solve_allocation(costs: Tensor, errors: Tensor, budget: int) -> Tensor:
    """Solve the knapsack by dynamic programming.

    Args:
        costs: (layers, options), whole numbers as float64; their sums must stay below 2^53.
        errors: (layers, options), units of the budget as int64, 0 or more. An option beyond the budget is never chosen,
            so rows may be padded with such.
        budget: the largest sum of errors.

    Returns:
        The option of each layer (int64), empty if none keeps within the budget. Of solutions with equal cost, the one
        with the least error, then with the first options of the last layers.
    """
    check_allocation(costs, errors, budget)
    tables = torch.full((len(costs) + 1, budget + 1), torch.inf, dtype=torch.float64)
    tables[0, 0] = 0
    for layer, (layer_costs, layer_errors) in enumerate(zip(costs.tolist(), errors.tolist(), strict=True)):
        before, after = tables[layer], tables[layer + 1]
        for cost, error in zip(layer_costs, layer_errors, strict=True):
            if error <= budget:
                torch.minimum(after[error:], before[: budget + 1 - error] + cost, out=after[error:])
    return trace_back(tables, costs, errors)


def check_allocation(costs: Tensor, errors: Tensor, budget: int) -> None:
    """Raise ValueError for shapes or numbers that the solver does not support."""
    if costs.shape != errors.shape or costs.dim() != 2:
        raise ValueError(
            f"solve_allocation: costs and errors must both be (layers, options), got {costs.shape} and {errors.shape}"
        )
    if budget < 0 or bool((errors < 0).any()) or not bool(((costs >= 0) & (costs < 2.0**53)).all()):
        raise ValueError(
            f"solve_allocation: errors, costs (below 2^53) and the budget must not be negative, got budget {budget}"
        )


def trace_back(tables: Tensor, costs: Tensor, errors: Tensor) -> Tensor:
    """The options, from the tables: tables[l, e] is the least cost of the first l layers with errors e in total."""
    left = int(tables[-1].argmin())  # the first of equal ones
    if not bool(tables[-1, left] < torch.inf):
        return NONE.clone()
    choice = torch.empty(len(costs), dtype=torch.int64)
    for layer in range(len(costs) - 1, -1, -1):
        places = left - errors[layer]
        sums = torch.where(places >= 0, tables[layer][places.clamp(min=0)] + costs[layer], torch.inf)
        choice[layer] = (sums == tables[layer + 1, left]).int().argmax()
        left -= int(errors[layer, choice[layer]])
    return choice
