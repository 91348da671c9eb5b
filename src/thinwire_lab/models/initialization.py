"""Initial weights that depend only on a seed: the same bits on every rank and processor."""

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
Deviation = Callable[[str, Tensor], float]  # standard deviation of a matrix by name and shape


def initialize(build: Callable[[], M], seed: int, deviation: Deviation | None = None) -> M:
    """Build a model and initialize it: uniform matrices (He et al., 2015, unless `deviation` is given), zero biases.

    Norms keep their ones. No random generator is used: entries are keyed noise, scaled by operations that all
    processors round in the same way.
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
    """Uniform entries with mean zero and this standard deviation."""
    words = noise32(derive_key(seed, _INITIAL_KEY, name), like.numel(), like.device)
    unit = (words.double() + 0.5) * 2.0**-32 - 0.5
    return (unit * (deviation * math.sqrt(12.0))).to(like.dtype).view(like.shape)


def he_deviation(name: str, weights: Tensor) -> float:
    """He initialization (He et al., 2015): sqrt(2 / inputs)."""
    return math.sqrt(2.0 / max(1, weights[0].numel()))
