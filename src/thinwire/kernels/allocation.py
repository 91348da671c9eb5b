"""Multiple-choice knapsack: one option per layer, with the least total cost within an error budget.

Of the dynamic program's tables, only what can matter is computed: options that another one beats are excluded first,
errors count from the least one of each layer, and sums end where the layers so far cannot have more.
"""

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
    if not costs.numel():
        return NONE.clone()
    errors = exclude_dominated(costs, errors, budget)
    least = errors.amin(1, keepdim=True)
    errors, budget = errors - least, budget - int(least.sum())
    return trace_back(fill_tables(costs, errors, budget), costs, errors) if budget >= 0 else NONE.clone()


def exclude_dominated(costs: Tensor, errors: Tensor, budget: int) -> Tensor:
    """Errors, but above the budget for options that another one beats in error or cost and equals in the other.

    No solution has such an option: the other one would make it cheaper, or its error less. Of equal options only the
    first stays.
    """
    by_cost = costs.argsort(dim=1, stable=True)
    order = by_cost.gather(1, errors.gather(1, by_cost).argsort(dim=1, stable=True))  # by error, then cost, then index
    ordered = costs.gather(1, order)
    is_dominated = torch.zeros_like(order, dtype=torch.bool)
    is_dominated[:, 1:] = ordered[:, 1:] >= ordered.cummin(1).values[:, :-1]
    return errors.masked_fill(is_dominated.gather(1, order.argsort(dim=1)), budget + 1).clamp(max=budget + 1)


def fill_tables(costs: Tensor, errors: Tensor, budget: int) -> Tensor:
    """tables[l, e]: the least cost of the first l layers with errors e in total; infinite if they never have e."""
    tables = torch.full((len(costs) + 1, budget + 1), torch.inf, dtype=torch.float64)
    tables[0, 0] = 0
    largest = 0  # sum of errors so far
    for before, after, layer_costs, layer_errors in zip(tables, tables[1:], costs, errors, strict=False):
        kept = layer_errors <= budget
        for cost, error in zip(layer_costs[kept].tolist(), layer_errors[kept].tolist(), strict=True):
            sums = before[: min(largest, budget - error) + 1] + cost
            target = after[error : error + len(sums)]
            torch.minimum(target, sums, out=target)
        largest = min(budget, largest + int(layer_errors[kept].max()))
    return tables


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
    """The options, from what `fill_tables` returned: of the sums that are least, the one with the least error."""
    left = int(tables[-1].argmin())  # the first of equal ones
    choice = torch.empty(len(costs), dtype=torch.int64)
    for layer in range(len(costs) - 1, -1, -1):
        places = left - errors[layer]
        sums = torch.where(places >= 0, tables[layer][places.clamp(min=0)] + costs[layer], torch.inf)
        choice[layer] = (sums == tables[layer + 1, left]).int().argmax()
        left -= int(errors[layer, choice[layer]])
    return choice
