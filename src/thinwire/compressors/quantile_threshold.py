"""Quantile threshold (Aji & Heafield, 2017; sampled: DGC, Lin et al., 2018): send all |x| at or above a quantile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import DENSITY, Capabilities, Capability, CompositionError, Compressor, Contract, Key, TensorSpec
from ..kernels import (
    distinct_positions,
    kth_magnitudes,
    largest_magnitudes,
    positions_reaching,
    positions_reaching_many,
    take,
)
from .identity import Identity
from .sparse import SparseCompressor, combine_contracts, count_kept, estimate_num_bytes, values_spec


@dataclass(frozen=True)
class QuantileThreshold(SparseCompressor):
    """Send every |x| at or above the (1 - density)-quantile: k_t·(b + log2(d/k_t) + 1.5) bits. Biased, delta = k_t/d.

    All values that tie with the quantile are sent, so k_t may exceed density·d. With a sampled quantile, k_t is kept
    between half and twice density·d.

    Args:
        density: fraction of coordinates to send, in (0, 1].
        sample_fraction: fraction of coordinates, drawn by the key, that the quantile is estimated from; 1 is exact.
        values: compressor of the kept values.
    """

    tunable = DENSITY
    declared: ClassVar[Capabilities] = SparseCompressor.declared | {
        Capability.VARIABLE_SIZE,
        Capability.EXPECTS_BYTES,
    }

    density: float = 0.01
    sample_fraction: float = 1.0
    values: Compressor = Identity()

    def __post_init__(self) -> None:
        for name, value in (("density", self.density), ("sample_fraction", self.sample_fraction)):
            if not 0 < value <= 1:
                raise CompositionError(f"QuantileThreshold: {name} must be in (0, 1], got {value}; 0.01 is usual")

    def contract(self, spec: TensorSpec) -> Contract:
        min_kept, _ = self.bounds(spec.numel)
        return combine_contracts(min_kept / max(1, spec.numel), self.values, values_spec(spec, min_kept))

    def num_bytes(self, spec: TensorSpec) -> float:
        return estimate_num_bytes(count_kept(self.density, None, spec.numel), spec, self.values)

    def bounds(self, numel: int) -> tuple[int, int]:
        if self.sample_fraction == 1:
            return count_kept(self.density, None, numel), numel
        return count_kept(self.density / 2, None, numel), count_kept(min(1.0, 2 * self.density), None, numel)

    def select_many(self, flats: Sequence[Tensor], keys: Sequence[Key]) -> tuple[Tensor, Sequence[int]]:
        if self.sample_fraction < 1:
            return super().select_many(flats, keys)
        counts = [count_kept(self.density, None, flat.numel()) for flat in flats]
        return positions_reaching_many(flats, kth_magnitudes(flats, counts))

    def select(self, scores: Tensor, key: Key) -> Tensor:
        numel = scores.numel()
        if numel == 0:
            return torch.arange(0, device=scores.device)
        num_sampled = math.ceil(self.sample_fraction * numel)
        sample = scores
        if num_sampled < numel:
            sample = take(scores, distinct_positions(key, num_sampled, numel, scores.device))
        level = take(sample, largest_magnitudes(sample, count_kept(self.density, None, num_sampled))).abs().min()
        positions = positions_reaching(scores, float(level))
        min_kept, max_kept = self.bounds(numel)
        if min_kept <= positions.numel() <= max_kept:
            return positions
        return largest_magnitudes(scores, min(max(positions.numel(), min_kept), max_kept))
