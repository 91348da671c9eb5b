"""Everything above the one of 25 fixed levels that leaves the wanted share of zeros."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..core import Capabilities, Capability, CompositionError, Compressor, Contract, Key, TensorSpec
from ..kernels import count_below, reaching
from .identity import Identity
from .sparse import Sparse, kept_nbytes

LEVELS = tuple(10 ** (-20 + (20 - 0.3010299956639812) * i / 24) for i in range(25))  # 1e-20 ... 0.5, evenly in log


@dataclass(frozen=True)
class LevelSearch(Sparse):
    """Send |x| at or above the last of 25 fixed levels that leaves less than a share of zeros: as Threshold. No delta.

    Levels go from 1e-20 to 0.5; found by bisection, as TAGC does: no sort, a handful of counting passes. If all of them
    leave too many zeros, the first is taken.
    """

    capabilities: ClassVar[Capabilities] = Sparse.capabilities | {Capability.VARIABLE_SIZE}

    zeros: float = 0.8
    values: Compressor = Identity()

    def __post_init__(self) -> None:
        if not 0 < self.zeros < 1:
            raise CompositionError(f"LevelSearch: zeros must be between 0 and 1, got {self.zeros}; 0.8 is usual")

    def select(self, scores: Tensor, key: Key) -> Tensor:
        del key  # deterministic
        return reaching(scores, self.level(scores))

    def level(self, scores: Tensor) -> float:
        """The share of zeros grows with the level, so bisection finds the last one below the target."""
        low, high = 0, len(LEVELS)  # LEVELS[low] leaves few enough zeros, or is the first; LEVELS[high] too many
        while high - low > 1:
            middle = (low + high) // 2
            if count_below(scores, LEVELS[middle]) < self.zeros * scores.numel():
                low = middle
            else:
                high = middle
        return LEVELS[low]

    def contract(self, spec: TensorSpec) -> Contract:
        return Contract()

    def num_bytes(self, spec: TensorSpec) -> float:
        """As if numbers had unit variance; the levels are coarse, so the target is met only roughly."""
        level = max((v for v in LEVELS if math.erf(v / math.sqrt(2)) < self.zeros), default=LEVELS[0])
        return kept_nbytes(round(math.erfc(level / math.sqrt(2)) * spec.numel), spec, self.values)
