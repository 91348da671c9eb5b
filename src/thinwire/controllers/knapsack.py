"""Multiple-choice knapsack of L-GreCo (Alimohammadi et al., 2024): fewest bytes within a budget of errors.

Plain mathematics. Errors and costs are lists with one tensor (float64) for each layer: one number for each option.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

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
    errors = [torch.nan_to_num(row.double(), nan=0.0, posinf=torch.inf) for row in errors]
    costs = [row.double() for row in costs]
    budget = alpha * sum_chosen(errors, defaults)
    kept = [pareto_front(e, c) for e, c in zip(errors, costs, strict=True)]
    rows = [e[k] for e, k in zip(errors, kept, strict=True)], [c[k] for c, k in zip(costs, kept, strict=True)]
    chosen = solve_lagrangian(*rows, budget) if solver == "lagrangian" else solve_exact(*rows, budget, error_levels)
    best = None if chosen is None else [int(k[at]) for k, at in zip(kept, chosen, strict=True)]
    if alpha >= 1 and (best is None or sum_chosen(costs, best) > sum_chosen(costs, defaults)):
        return list(defaults)  # rounding up errors can put the defaults themselves over the budget
    return best if best is not None else [int(k[row.argmin()]) for k, row in zip(kept, rows[0], strict=True)]


def sum_chosen(rows: Rows, options: Sequence[int]) -> float:
    """Sum of each row's number for the option chosen there."""
    return float(sum(float(row[at]) for row, at in zip(rows, options, strict=True)))


def pareto_front(errors: Tensor, costs: Tensor) -> Tensor:
    """Options that no other beats in both error and cost, from the cheapest on; of equals the first."""
    order = sorted(range(len(costs)), key=lambda at: (float(costs[at]), float(errors[at]), at))
    kept: list[int] = []
    for at in order:
        if not kept or errors[at] < errors[kept[-1]]:
            kept.append(at)
    return torch.tensor(kept, dtype=torch.int64)


def solve_exact(errors: Rows, costs: Rows, budget: float, error_levels: int) -> list[int] | None:
    """The optimum for errors rounded up to whole levels of the budget, so that true errors stay within it."""
    unit = budget / error_levels
    if unit > 0:
        units = [torch.ceil(row / unit).clamp(max=error_levels + 1).long() for row in errors]
    else:
        units, error_levels = [(row > 0).long() for row in errors], 0
    for _ in range(2):  # a sum of rounded numbers may exceed the budget by a rounding error: then with one level less
        chosen = solve_allocation(*_pad_rows(units, costs, error_levels), error_levels)
        if not len(chosen):
            return None
        options: list[int] = chosen.tolist()
        if sum_chosen(errors, options) <= budget:
            return options
        error_levels -= 1
    return None


def _pad_rows(units: Rows, costs: Rows, error_levels: int) -> tuple[Tensor, Tensor]:
    """Costs, as whole numbers, and errors as (layers, options); what fills short rows is over the budget."""
    width = max((len(row) for row in units), default=0)
    padded_errors = torch.full((len(units), width), error_levels + 1, dtype=torch.int64)
    padded_costs = torch.zeros(len(units), width, dtype=torch.float64)
    for at, (row, cost) in enumerate(zip(units, costs, strict=True)):
        padded_errors[at, : len(row)] = row
        padded_costs[at, : len(row)] = torch.ceil(cost)
    return padded_costs, padded_errors


def solve_lagrangian(errors: Rows, costs: Rows, budget: float) -> list[int] | None:
    """Minimize cost + multiplier · error, with the multiplier found by bisection: quick, and near the optimum.

    It reaches the plans on the convex hull of all plans; with many layers the hull is dense.
    """

    def minimize(multiplier: float) -> list[int]:
        return [int((cost + multiplier * error).argmin()) for error, cost in zip(errors, costs, strict=True)]

    low, high = 0.0, 1.0
    if sum_chosen(errors, minimize(low)) <= budget:
        return minimize(low)
    while sum_chosen(errors, minimize(high)) > budget:
        low, high = high, 4 * high
        if high > 1e300:
            return None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if sum_chosen(errors, minimize(middle)) <= budget else (middle, high)
    return minimize(high)
