"""A ring in each of two directions."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..core import World
from .even import evenly


@dataclass(frozen=True)
class Torus:
    """Hear four neighbours on the most nearly square grid of n ranks, 1/5 each. A prime number of ranks is a ring."""

    changes = False

    def weights(self, world: World, step: int) -> dict[int, float]:
        rank, (rows, columns) = world.rank, grid(world.size)
        row, column = divmod(rank, columns)
        beside = [row * columns + (column + by) % columns for by in (-1, 1)]
        above = [(row + by) % rows * columns + column for by in (-1, 1)]
        return evenly(rank, beside + above)


def grid(size: int) -> tuple[int, int]:
    """(rows, columns) with rows · columns = size, as near to one another as it has divisors for."""
    rows = next(r for r in range(math.isqrt(size), 0, -1) if size % r == 0)
    return rows, size // rows
