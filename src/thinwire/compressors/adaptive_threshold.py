"""Everything above a level that is found anew each time: a quantile of the magnitudes, all of them or a sample."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import DENSITY, Capabilities, Capability, CompositionError, Compressor, Contract, Key, TensorSpec
from ..kernels import distinct_positions, largest_magnitudes, reaching, take
from .identity import Identity
from .sparse import Sparse, kept_count, kept_nbytes, then, values_spec


@dataclass(frozen=True)
class AdaptiveThreshold(Sparse):
    """Send every |x| at or above the (1 - density)-quantile: k_t·(b + log2(d/k_t) + 1.5) bits. Biased, delta = k_t/d.

    sample=1 takes the exact quantile, the smallest magnitude that is sent: all ties with it are sent, since of equal
    numbers none exceeds the others and delta counts on k_t. A smaller sample estimates it from that share of the
    coordinates, drawn by the key; the number sent is then held between half and twice density·d.
    """

    tunable = DENSITY
    capabilities: ClassVar[Capabilities] = Sparse.capabilities | {Capability.VARIABLE_SIZE, Capability.EXPECTS_BYTES}

    density: float = 0.01
    sample: float = 1.0
    values: Compressor = Identity()

    def __post_init__(self) -> None:
        for name, value in (("density", self.density), ("sample", self.sample)):
            if not 0 < value <= 1:
                raise CompositionError(f"AdaptiveThreshold: {name} must be in (0, 1], got {value}; 0.01 is usual")

    def contract(self, spec: TensorSpec) -> Contract:
        least, _ = self.bounds(spec.numel)
        return then(least / max(1, spec.numel), self.values, values_spec(spec, least))

    def num_bytes(self, spec: TensorSpec) -> float:
        return kept_nbytes(kept_count(self.density, None, spec.numel), spec, self.values)

    def bounds(self, numel: int) -> tuple[int, int]:
        if self.sample == 1:
            return kept_count(self.density, None, numel), numel
        return kept_count(self.density / 2, None, numel), kept_count(min(1.0, 2 * self.density), None, numel)

    def select(self, scores: Tensor, key: Key) -> Tensor:
        numel = scores.numel()
        if numel == 0:
            return torch.arange(0, device=scores.device)
        count = math.ceil(self.sample * numel)
        sampled = scores if count == numel else take(scores, distinct_positions(key, count, numel, scores.device))
        level = take(sampled, largest_magnitudes(sampled, kept_count(self.density, None, count))).abs().min()
        positions = reaching(scores, float(level))
        least, most = self.bounds(numel)
        if least <= positions.numel() <= most:
            return positions
        return largest_magnitudes(scores, min(max(positions.numel(), least), most))
