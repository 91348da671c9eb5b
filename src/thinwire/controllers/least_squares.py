"""Least squares with rates that are not negative: seconds = constant + sizes @ rates. Plain mathematics."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Fit(NamedTuple):
    """seconds = constant + sizes @ rates, and R²: the share of the seconds' variance that this explains."""

    rates: Tensor
    constant: float
    r2: float


def fit_rates(sizes: Tensor, seconds: Tensor) -> Fit:
    """Fit rates (columns,) to sizes (samples, columns) and seconds (samples,), all float64; no rate is negative.

    Sending more takes no less time, so a column with a negative rate is left out and the others are fitted again. A
    column that never changes cannot be distinguished from the constant: its rate is 0.
    """
    scale = (sizes.amax(0) - sizes.amin(0)).clamp(min=0)
    kept = [at for at in range(sizes.shape[1]) if scale[at] > 0]
    rates = torch.zeros(sizes.shape[1], dtype=torch.float64)
    constant = float(seconds.mean()) if len(seconds) else 0.0
    while kept:
        columns = (sizes[:, kept] - sizes[:, kept].mean(0)) / scale[kept]
        solution = torch.linalg.lstsq(columns, seconds - seconds.mean(), driver="gelsd").solution / scale[kept]
        worst = int(solution.argmin())
        if solution[worst] < 0:
            del kept[worst]
            continue
        rates[kept] = solution
        constant = float(seconds.mean() - sizes.mean(0) @ rates)
        break
    return Fit(rates, constant, r_squared(seconds, constant + sizes @ rates))


def r_squared(measured: Tensor, predicted: Tensor) -> float:
    """1 for a perfect prediction, 0 for one that is no better than the mean; 0 where there is nothing to explain."""
    variance = float((measured - measured.mean()).square().sum()) if len(measured) else 0.0
    return 1 - float((measured - predicted).square().sum()) / variance if variance > 0 else 0.0
