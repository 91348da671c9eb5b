"""ImpK (Khafizov, 2025; MD Weighted Greedy, Khafizov & Beznosikov, 2024): send s·w·x at the k largest |w·x|."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..core import Key
from ..kernels import largest_magnitudes
from .importance_base import ScaledImportanceCompressor


@dataclass(frozen=True)
class ImpK(ScaledImportanceCompressor):
    """Send s·w·x at the k largest |w·x|: as Top-k. Biased; |x - C(x)| <= |x| if s·w <= 2, which "clamped" ensures.

    Without an importance w it is Top-k.

    Args:
        density: fraction of coordinates to send, in (0, 1]; give either this or k.
        k: number of coordinates to send.
        values: compressor of the kept values.
        weights: "none" sends x, "plain" w·x (s = 1), "normalized" s·w·x with s = k / (sum of the kept w), "clamped"
            the same with s·w at most 2.
    """

    weights: str = "clamped"

    def select(self, scores: Tensor, key: Key) -> Tensor:
        del key  # deterministic
        importance, magnitudes = self.importance_for(scores), scores.abs()
        weighted = magnitudes if importance is None else importance * magnitudes
        return largest_magnitudes(weighted, self.count(scores.numel()))
