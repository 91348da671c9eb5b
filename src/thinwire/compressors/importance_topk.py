"""Top-k by importance (MD Greedy, Khafizov & Beznosikov, 2024): send x at the k largest importances w."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import CompositionError, Key
from ..kernels import largest_magnitudes
from .importance_base import ScaledImportanceCompressor


@dataclass(frozen=True)
class ImportanceTopK(ScaledImportanceCompressor):
    """Send x at the k largest w: as Top-k. Biased; sends the same coordinates until w changes, so use error feedback.

    Among equal w the larger |x| are taken. Without an importance w it is Top-k. With `weights` other than "none" it is
    MD Greedy Weighted, with `pool_factor=2` "TopK then MD Greedy".

    Args:
        density: fraction of coordinates to send, in (0, 1]; give either this or k.
        k: number of coordinates to send.
        values: compressor of the kept values.
        weights: scaling of what is sent, as in ImpK.
        pool_factor: select among the pool_factor·k largest |x| only.
    """

    pool_factor: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pool_factor is not None and not 1 <= self.pool_factor < math.inf:
            raise CompositionError(
                f"ImportanceTopK: pool_factor must be at least 1, got {self.pool_factor}; 2 selects among the 2k "
                "largest magnitudes"
            )

    def select(self, scores: Tensor, key: Key) -> Tensor:
        del key  # deterministic
        importance, magnitudes = self.importance_for(scores), scores.abs()
        count = self.count(scores.numel())
        if importance is None:
            return largest_magnitudes(magnitudes, count)
        if self.pool_factor is None:
            return select_most_important(importance, magnitudes, count)
        pool = largest_magnitudes(magnitudes, math.ceil(self.pool_factor * count))
        return pool[select_most_important(importance[pool], magnitudes[pool], count)]


def select_most_important(importance: Tensor, magnitudes: Tensor, count: int) -> Tensor:
    """Return positions of the largest w, ascending; among equal w the largest magnitudes, among those the first.

    In a box many w are at its upper bound: selected by position, they would always be the same few.
    """
    positions = largest_magnitudes(importance, count)
    if count == 0 or count == importance.numel():
        return positions
    smallest = importance[positions].min()
    above, tied = (importance > smallest).nonzero().flatten(), (importance == smallest).nonzero().flatten()
    tied = tied[largest_magnitudes(magnitudes[tied], count - above.numel())]
    return torch.cat((above, tied)).sort().values
