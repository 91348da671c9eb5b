"""Rounding to integers: to the nearest, or stochastic rounding, which keeps the mean."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import CompositionError, Key
from ..kernels import noise16

ROUNDINGS = ("nearest", "stochastic")


def check_rounding(part: str, rounding: str) -> None:
    """Raise CompositionError unless the setting is one of ROUNDINGS."""
    if rounding not in ROUNDINGS:
        raise CompositionError(f"{part}: rounding must be one of {', '.join(ROUNDINGS)}, got {rounding!r}")


def round_to_integers(numbers: Tensor, rounding: str, key: Key) -> Tensor:
    """Round to integers, as float32. Stochastic rounding uses 16 random bits: means are exact to 2^-17 of a step."""
    if rounding == "nearest":
        return torch.round(numbers)
    return torch.floor(numbers + draw_uniform16(numbers, key))


def draw_uniform16(like: Tensor, key: Key) -> Tensor:
    """Draw one number in (0, 1) for each element, from 16 random bits, in the shape of `like`."""
    return (noise16(key, like.numel(), like.device).view_as(like) + 0.5) * 2.0**-16
