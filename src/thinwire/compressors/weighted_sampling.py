"""Weighted sampling without replacement by exponential clocks (Efraimidis & Spirakis, 2006), or Gumbel top-k."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import Key
from ..kernels import largest, noise32


def draw_uniform(key: Key, like: Tensor) -> Tensor:
    """Draw one number in (0, 1) for each element, as a flat float64 tensor. Never 0, never 1."""
    return (noise32(key, like.numel(), like.device).double() + 0.5) * 2.0**-32


def sample_without_replacement(log_weights: Tensor, count: int, key: Key) -> Tensor:
    """Draw `count` positions without replacement, with probabilities in proportion to exp(log_weights).

    Each element gets an exponential waiting time with its weight as the rate; the `count` shortest times win. Elements
    of weight zero (log_weight = -inf) come last, in order of position.

    Returns:
        The positions, ascending.
    """
    log_speeds = log_weights.double() - torch.log(-torch.log(draw_uniform(key, log_weights)))  # log(1 / waiting time)
    return largest(log_speeds, count)
