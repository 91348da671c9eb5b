"""Drawing without replacement, with chances of one's own."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import Key
from ..kernels import largest, noise32


def uniforms(key: Key, like: Tensor) -> Tensor:
    """Draws from (0, 1) for each element, in double precision: never 0, never 1, all different."""
    return (noise32(key, like.numel(), like.device).double() + 0.5) * 2.0**-32


def first_arrivals(log_rates: Tensor, count: int, key: Key) -> Tensor:
    """Positions of `count` draws without replacement, ascending, chances in proportion to exp(log_rates).

    An exponential race: each element gets a waiting time with its rate, those that arrive first are taken. Of rate
    zero (log_rate = -inf) are taken last, in order of position.
    """
    arrivals = log_rates.double() - torch.log(-torch.log(uniforms(key, log_rates)))  # log of 1 / waiting time
    return largest(arrivals, count)
