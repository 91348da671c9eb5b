"""Everybody with everybody."""

from __future__ import annotations

from dataclasses import dataclass

from ..core import World
from .even import evenly


@dataclass(frozen=True)
class Complete:
    """Everybody hears everybody, 1/n each: n − 1 partners, the average in one step."""

    changes = False

    def weights(self, world: World, step: int) -> dict[int, float]:
        return evenly(world.rank, range(world.size))
