"""Sampling by energy: send k coordinates drawn with probabilities in proportion to x² (Efraimidis & Spirakis, 2006)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..core import Contract, Key, TensorSpec
from .sparse import FixedCountCompressor
from .weighted_sampling import sample_without_replacement


@dataclass(frozen=True)
class EnergySampling(FixedCountCompressor):
    """Send k coordinates drawn without replacement, probabilities ∝ x²: as Top-k. Biased, |C(x)| <= |x|.

    Values are sent as they are, without a factor 1/p. Zeros are drawn last, in order of position.

    Args:
        density: fraction of coordinates to send, in (0, 1]; give either this or k.
        k: number of coordinates to send.
        values: compressor of the kept values.
    """

    def select(self, scores: Tensor, key: Key) -> Tensor:
        log_weights = 2 * scores.double().abs().log()  # in logs, so that no square overflows or vanishes
        return sample_without_replacement(log_weights, self.count(scores.numel()), key)

    def contract(self, spec: TensorSpec) -> Contract:
        return Contract()
