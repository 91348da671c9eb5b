"""Coordinates drawn by their energy."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import Contract, Key, TensorSpec
from ..kernels import largest, noise32
from .sparse import Counted


@dataclass(frozen=True)
class SquareStochastic(Counted):
    """Send k coordinates drawn without replacement with chances in proportion to x^2: as Top-k. Biased, |C(x)| <= |x|.

    An exponential race: each coordinate gets a waiting time with rate x^2, the k that arrive first are sent. Zeros
    arrive last, in order of position.
    """

    def choose(self, scores: Tensor, key: Key) -> Tensor:
        return largest(_arrivals(scores, key), self.count(scores.numel()))

    def contract(self, spec: TensorSpec) -> Contract:
        return Contract()


def _arrivals(flat: Tensor, key: Key) -> Tensor:
    """log of 1 / waiting time: 2 log|x| - log(-log u). In logs, so that no square can overflow or vanish."""
    uniform = (noise32(key, flat.numel(), flat.device).double() + 0.5) * 2.0**-32
    return 2 * flat.double().abs().log() - torch.log(-torch.log(uniform))
