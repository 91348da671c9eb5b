"""Complete graph: every rank receives from all others, which gives the exact average in one step."""

from __future__ import annotations

from dataclasses import dataclass

from ..core import World
from .uniform_weights import uniform_weights


@dataclass(frozen=True)
class Complete:
    """Receive from all ranks with weight 1/n: n − 1 neighbors, the exact average in one step."""

    changes = False

    def weights(self, world: World, step: int) -> dict[int, float]:
        return uniform_weights(world.rank, range(world.size))
