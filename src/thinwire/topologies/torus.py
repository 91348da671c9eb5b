"""2-D torus: ranks on a grid exchange with their four neighbors, wrapping around."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..core import World
from .uniform_weights import uniform_weights


@dataclass(frozen=True)
class Torus:
    """Receive from 4 neighbors on the most nearly square grid of n ranks, weights 1/5. A prime n makes a ring."""

    changes = False

    def weights(self, world: World, step: int) -> dict[int, float]:
        rank, (rows, columns) = world.rank, grid_shape(world.size)
        row, column = divmod(rank, columns)
        horizontal = [row * columns + (column + by) % columns for by in (-1, 1)]
        vertical = [(row + by) % rows * columns + column for by in (-1, 1)]
        return uniform_weights(rank, horizontal + vertical)


def grid_shape(size: int) -> tuple[int, int]:
    """(rows, columns) with rows · columns = size, as nearly equal as its divisors allow."""
    rows = next(r for r in range(math.isqrt(size), 0, -1) if size % r == 0)
    return rows, size // rows
