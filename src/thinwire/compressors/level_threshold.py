"""Dynamic sparsification of TAGC (Polyakov et al., 2025): send all |x| at or above the best of 25 fixed levels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..core import Capabilities, Capability, CompositionError, Compressor, Contract, Key, TensorSpec
from ..kernels import count_below, positions_reaching, positions_reaching_many
from .identity import Identity
from .sparse import SparseCompressor, estimate_num_bytes

LEVELS = tuple(10 ** (-20 + (20 - 0.3010299956639812) * i / 24) for i in range(25))  # 1e-20 ... 0.5, even in log


@dataclass(frozen=True)
class LevelThreshold(SparseCompressor):
    """Send |x| at or above the largest of 25 fixed levels that keeps sparsity below a target: as Threshold. No delta.

    The levels go from 1e-20 to 0.5 and are searched by bisection: no sort, a handful of counting passes. If every level
    leaves too many zeros, the first is taken.

    Args:
        sparsity: upper bound of the fraction of coordinates that are not sent, in (0, 1).
        values: compressor of the kept values.
    """

    declared: ClassVar[Capabilities] = SparseCompressor.declared | {Capability.VARIABLE_SIZE}

    sparsity: float = 0.8
    values: Compressor = Identity()

    def __post_init__(self) -> None:
        if not 0 < self.sparsity < 1:
            raise CompositionError(f"LevelThreshold: sparsity must be in (0, 1), got {self.sparsity}; 0.8 is usual")

    def select(self, scores: Tensor, key: Key) -> Tensor:
        del key  # deterministic
        return positions_reaching(scores, self.find_level(scores))

    def find_level(self, scores: Tensor) -> float:
        """Find the largest level below the target sparsity by bisection: sparsity grows with the level."""
        low, high = 0, len(LEVELS)  # LEVELS[low] leaves few enough zeros, or is the first; LEVELS[high] too many
        while high - low > 1:
            middle = (low + high) // 2
            if count_below(scores, LEVELS[middle]) < self.sparsity * scores.numel():
                low = middle
            else:
                high = middle
        return LEVELS[low]

    def select_many(self, flats: Sequence[Tensor], keys: Sequence[Key]) -> tuple[Tensor, Sequence[int]]:
        del keys
        levels = [self.find_level(flat) for flat in flats]  # all passes over one layer while it is in the cache
        return positions_reaching_many(flats, levels)

    def contract(self, spec: TensorSpec) -> Contract:
        return Contract()

    def num_bytes(self, spec: TensorSpec) -> float:
        """Return the size for values of unit variance; the levels are coarse, so the target is met only roughly."""
        level = max((v for v in LEVELS if math.erf(v / math.sqrt(2)) < self.sparsity), default=LEVELS[0])
        return estimate_num_bytes(round(math.erfc(level / math.sqrt(2)) * spec.numel), spec, self.values)
