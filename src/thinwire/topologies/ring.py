"""Two neighbours."""

from __future__ import annotations

from dataclasses import dataclass

from ..core import World
from .even import evenly


@dataclass(frozen=True)
class Ring:
    """Hear the rank before and the one after, 1/3 each: 2 partners, gap (2/3)(1 − cos 2π/n). Two ranks take halves."""

    changes = False

    def weights(self, world: World, step: int) -> dict[int, float]:
        rank, size = world
        return evenly(rank, [(rank - 1) % size, (rank + 1) % size])
