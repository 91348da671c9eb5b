"""First weights that follow from a seed alone: the same bits on every rank, whatever its processor."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from thinwire.core import derive_key
from thinwire.importance import preserve_rng_state
from thinwire.kernels.reference import noise32

_INITIAL_KEY = "initial"  # frozen: makes the random bits

M = TypeVar("M", bound=nn.Module)
Deviation = Callable[[str, Tensor], float]  # of a matrix's entries, by its name and shape


def initialize(build: Callable[[], M], seed: int, deviation: Deviation | None = None) -> M:
    """A new model: matrices uniform with that deviation (as He et al. if none is given), biases zero, norms one.

    No generator is touched: entries are keyed noise, scaled by operations that all processors round alike.
    """
    deviation = deviation or he_deviation
    with preserve_rng_state():
        model = build()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.copy_(draw_uniform(parameter, deviation(name, parameter), seed, name))
            elif name.endswith("bias"):
                parameter.zero_()
    return model


def draw_uniform(like: Tensor, deviation: float, seed: int, name: str) -> Tensor:
    """Uniform entries around zero, with this deviation."""
    words = noise32(derive_key(seed, _INITIAL_KEY, name), like.numel(), like.device)
    unit = (words.double() + 0.5) * 2.0**-32 - 0.5
    return (unit * (deviation * math.sqrt(12.0))).to(like.dtype).view(like.shape)


def he_deviation(name: str, weights: Tensor) -> float:
    """sqrt(2 / inputs), which keeps the size of what rectifiers let through."""
    return math.sqrt(2.0 / max(1, weights[0].numel()))
