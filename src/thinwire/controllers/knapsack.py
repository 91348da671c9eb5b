"""One candidate for each layer: the cheapest together whose errors keep within a budget. Plain mathematics.

Errors and costs are lists with a tensor for each layer, one number (float64) a candidate.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..kernels import cheapest

Rows = Sequence[Tensor]
SOLVERS = ("exact", "lagrangian")
_HALVINGS = 60  # of an interval of prices: beyond, float64 knows no number between


def assignment(
    errors: Rows, costs: Rows, reference: Sequence[int], alpha: float = 1.0, steps: int = 10000, solver: str = "exact"
) -> list[int]:
    """The candidate of each layer. The sum of errors is at most `alpha` times the reference's; it never costs more.

    A layer whose errors are all zero, or no numbers, gets its cheapest. Where nothing keeps within the budget
    (alpha < 1), each layer gets the candidate of the least error.
    """
    errors = [torch.nan_to_num(row.double(), nan=0.0, posinf=torch.inf) for row in errors]
    costs = [row.double() for row in costs]
    budget = alpha * total(errors, reference)
    kept = [undominated(e, c) for e, c in zip(errors, costs, strict=True)]
    rows = [e[k] for e, k in zip(errors, kept, strict=True)], [c[k] for c, k in zip(costs, kept, strict=True)]
    found = lagrangian(*rows, budget) if solver == "lagrangian" else within(*rows, budget, steps)
    best = None if found is None else [int(k[at]) for k, at in zip(kept, found, strict=True)]
    if alpha >= 1 and (best is None or total(costs, best) > total(costs, reference)):
        return list(reference)  # rounding up errors can make the reference itself miss the budget
    return best if best is not None else [int(k[row.argmin()]) for k, row in zip(kept, rows[0], strict=True)]


def total(rows: Rows, choice: Sequence[int]) -> float:
    return float(sum(float(row[at]) for row, at in zip(rows, choice, strict=True)))


def undominated(errors: Tensor, costs: Tensor) -> Tensor:
    """Candidates that no other beats in both, from the cheapest on; of equals the first."""
    order = sorted(range(len(costs)), key=lambda at: (float(costs[at]), float(errors[at]), at))
    kept: list[int] = []
    for at in order:
        if not kept or errors[at] < errors[kept[-1]]:
            kept.append(at)
    return torch.tensor(kept, dtype=torch.int64)


def within(errors: Rows, costs: Rows, budget: float, steps: int) -> list[int] | None:
    """The optimum for errors rounded up to whole steps of the budget, so that true errors keep within it."""
    unit = budget / steps
    if unit > 0:
        units = [torch.ceil(row / unit).clamp(max=steps + 1).long() for row in errors]
    else:
        units, steps = [(row > 0).long() for row in errors], 0
    for _ in range(2):  # a sum of rounded numbers may exceed the budget by a rounding error: then with a unit less
        choice = cheapest(*_filled(units, costs, steps), steps)
        if not len(choice):
            return None
        found: list[int] = choice.tolist()
        if total(errors, found) <= budget:
            return found
        steps -= 1
    return None


def _filled(units: Rows, costs: Rows, steps: int) -> tuple[Tensor, Tensor]:
    """Rows of one length; what was filled in is beyond the budget. Costs as whole numbers."""
    width = max((len(row) for row in units), default=0)
    errors = torch.full((len(units), width), steps + 1, dtype=torch.int64)
    prices = torch.zeros(len(units), width, dtype=torch.float64)
    for at, (row, cost) in enumerate(zip(units, costs, strict=True)):
        errors[at, : len(row)] = row
        prices[at, : len(row)] = torch.ceil(cost)
    return prices, errors


def lagrangian(errors: Rows, costs: Rows, budget: float) -> list[int] | None:
    """The best choice that minimises cost + price · error for one price of error: quick, and near the optimum.

    It finds what lies on the convex hull of all choices; with many layers the hull is dense.
    """

    def choice(price: float) -> list[int]:
        return [int((cost + price * error).argmin()) for error, cost in zip(errors, costs, strict=True)]

    low, high = 0.0, 1.0
    if total(errors, choice(low)) <= budget:
        return choice(low)
    while total(errors, choice(high)) > budget:
        low, high = high, 4 * high
        if high > 1e300:
            return None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if total(errors, choice(middle)) <= budget else (middle, high)
    return choice(high)
