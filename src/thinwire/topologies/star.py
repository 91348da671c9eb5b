"""One in the middle."""

from __future__ import annotations

from dataclasses import dataclass

from ..core import CompositionError, World


@dataclass(frozen=True)
class Star:
    """All hear rank `center`, 1/n, and keep the rest of themselves; it hears all. A server's traffic, slow to mix."""

    center: int = 0

    changes = False

    def __post_init__(self) -> None:
        if self.center < 0:
            raise CompositionError(f"Star: center must be a rank, got {self.center}; 0 is usual")

    def weights(self, world: World, step: int) -> dict[int, float]:
        rank, size = world
        if self.center >= size:
            raise CompositionError(f"Star: center is rank {self.center}, this world has {size} ranks")
        if rank == self.center:
            return dict.fromkeys(range(size), 1 / size)
        return {rank: 1 - 1 / size, self.center: 1 / size}
