"""Coordinates drawn by their energy."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..core import Contract, Key, TensorSpec
from .race import first_arrivals
from .sparse import Counted


@dataclass(frozen=True)
class SquareStochastic(Counted):
    """Send k coordinates drawn without replacement with chances in proportion to x^2: as Top-k. Biased, |C(x)| <= |x|.

    An exponential race: each coordinate gets a waiting time with rate x^2, the k that arrive first are sent. Zeros
    arrive last, in order of position.
    """

    def select(self, scores: Tensor, key: Key) -> Tensor:
        log_rates = 2 * scores.double().abs().log()  # in logs, so that no square can overflow or vanish
        return first_arrivals(log_rates, self.count(scores.numel()), key)

    def contract(self, spec: TensorSpec) -> Contract:
        return Contract()
