"""To the nearest whole number, or to one of the two neighbours with chances that keep the mean."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import CompositionError, Key
from ..kernels import noise16

ROUNDINGS = ("nearest", "stochastic")


def check_rounding(part: str, rounding: str) -> None:
    if rounding not in ROUNDINGS:
        raise CompositionError(f"{part}: rounding must be one of {', '.join(ROUNDINGS)}, got {rounding!r}")


def rounded(numbers: Tensor, rounding: str, key: Key) -> Tensor:
    """Whole numbers as float32. Stochastic ones use 16 bits of noise: means are right to 2^-17 of a step."""
    if rounding == "nearest":
        return torch.round(numbers)
    return torch.floor(numbers + uniform_noise(numbers, key))


def uniform_noise(like: Tensor, key: Key) -> Tensor:
    """One draw from (0, 1) for each element."""
    return (noise16(key, like.numel(), like.device).view_as(like) + 0.5) * 2.0**-16
