"""Multiple-choice knapsack of L-GreCo (Alimohammadi et al., 2024): fewest bytes within a budget of errors.

Plain mathematics. Errors and costs have one row (float64) for each layer, with one number for each option.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..kernels import solve_allocation

Rows = Sequence[Tensor]
SOLVERS = ("exact", "lagrangian")
_HALVINGS = 60  # of an interval of multipliers: beyond, float64 has no number between


def solve_knapsack(
    errors: Rows,
    costs: Rows,
    defaults: Sequence[int],
    alpha: float = 1.0,
    error_levels: int = 10000,
    solver: str = "exact",
) -> list[int]:
    """Return the option of each layer, of the least cost within the budget. It never costs more than the defaults.

    A layer with errors that are all zero or NaN gets its cheapest option. Where nothing is within the budget
    (alpha < 1), each layer gets the option of the least error.

    Args:
        errors: of each option.
        costs: of each option.
        defaults: one option for each layer; the budget is `alpha` times the sum of their errors.
        alpha: of the defaults' errors.
        error_levels: into how many levels the exact solver divides the budget.
        solver: "exact" or "lagrangian".
    """
    if not len(errors):
        return []
    table = torch.nan_to_num(_pad(errors), nan=0.0, posinf=torch.inf), _pad(costs)
    budget = alpha * _sum_at(table[0], defaults)
    order, is_kept = pareto_front(*table)
    kept_errors, kept_costs = (numbers.gather(1, order).masked_fill(~is_kept, torch.inf) for numbers in table)
    if solver == "lagrangian":
        chosen = solve_lagrangian(kept_errors, kept_costs, budget)
    else:
        chosen = solve_exact(kept_errors, kept_costs, budget, error_levels)
    if alpha >= 1 and (chosen is None or _sum_at(kept_costs, chosen) > _sum_at(table[1], defaults)):
        return list(defaults)  # rounding up errors can put the defaults themselves over the budget
    at = kept_errors.argmin(1) if chosen is None else torch.tensor(chosen)
    options: list[int] = order.gather(1, at[:, None]).flatten().tolist()
    return options


def _pad(rows: Rows) -> Tensor:
    """Rows as (layers, options) in float64; what fills short rows is infinite."""
    if len({len(row) for row in rows}) == 1:
        return torch.stack(list(rows)).double()
    return pad_sequence(list(rows), batch_first=True, padding_value=torch.inf).double()


def sum_chosen(rows: Sequence[Any], options: Sequence[int]) -> float:
    """Sum of each row's number for the option chosen there, in the order of the rows; lists are faster than tensors."""
    return float(sum(float(row[at]) for row, at in zip(rows, options, strict=True)))


def _sum_at(table: Tensor, options: Sequence[int]) -> float:
    """`sum_chosen` of (layers, options), which adds up the same numbers in the same order."""
    return float(sum(table.gather(1, torch.tensor(options)[:, None]).flatten().tolist()))


def pareto_front(errors: Tensor, costs: Tensor) -> tuple[Tensor, Tensor]:
    """The order of each row's options from the cheapest on, and which of them no other beats; of equals the first.

    Args:
        errors: (layers, options).
        costs: (layers, options).

    Returns:
        Options in order of cost, then error, then index; and, in that order, whether an option has less error than all
        before it.
    """
    by_error = errors.argsort(dim=1, stable=True)
    order = by_error.gather(1, costs.gather(1, by_error).argsort(dim=1, stable=True))
    ordered = errors.gather(1, order)
    is_kept = torch.ones_like(order, dtype=torch.bool)
    is_kept[:, 1:] = ordered[:, 1:] < ordered.cummin(1).values[:, :-1]
    return order, is_kept


def solve_exact(errors: Tensor, costs: Tensor, budget: float, error_levels: int) -> list[int] | None:
    """The optimum for errors rounded up to whole levels of the budget, so that true errors stay within it.

    Args:
        errors: (layers, options).
        costs: (layers, options); options of infinite cost are never chosen.
        budget: of errors.
        error_levels: into how many levels the budget is divided.
    """
    unit, exists = budget / error_levels, costs < torch.inf
    if unit > 0:
        levels = torch.ceil(errors / unit).nan_to_num(nan=0.0).clamp(max=error_levels + 1)  # ∞ / ∞: within any budget
    else:
        levels, error_levels = errors > 0, 0
    units, whole_costs = levels.long().masked_fill(~exists, error_levels + 1), costs.ceil().masked_fill(~exists, 0.0)
    for _ in range(2):  # a sum of rounded numbers may exceed the budget by a rounding error: then with one level less
        options: list[int] = solve_allocation(whole_costs, units, error_levels).tolist()
        if not options:
            return None
        if _sum_at(errors, options) <= budget:
            return options
        error_levels -= 1
    return None


def solve_lagrangian(errors: Tensor, costs: Tensor, budget: float) -> list[int] | None:
    """Minimize cost + multiplier · error, with the multiplier found by bisection: quick, and near the optimum.

    It reaches the plans on the convex hull of all plans; with many layers the hull is dense. Arguments are those of
    `solve_exact`.
    """
    exists, error_rows = costs < torch.inf, errors.tolist()

    def minimize(multiplier: float) -> list[int]:
        options: list[int] = torch.where(exists, costs + multiplier * errors, torch.inf).argmin(1).tolist()
        return options

    def is_within(options: list[int]) -> bool:
        return sum_chosen(error_rows, options) <= budget

    low, high = 0.0, 1.0
    if is_within(minimize(low)):
        return minimize(low)
    while not is_within(minimize(high)):
        low, high = high, 4 * high
        if high > 1e300:
            return None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_within(minimize(middle)) else (middle, high)
    return minimize(high)
