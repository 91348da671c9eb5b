"""Ring: rank i exchanges with ranks i − 1 and i + 1 (as in D-PSGD, Lian et al., 2017)."""

from __future__ import annotations

from dataclasses import dataclass

from ..core import World
from .uniform_weights import uniform_weights


@dataclass(frozen=True)
class Ring:
    """Receive from ranks i − 1 and i + 1, weights 1/3: 2 neighbors, gap (2/3)(1 − cos 2π/n). Two ranks: 1/2 each."""

    changes = False

    def weights(self, world: World, step: int) -> dict[int, float]:
        rank, size = world
        return uniform_weights(rank, [(rank - 1) % size, (rank + 1) % size])
