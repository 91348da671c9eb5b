"""Star: all ranks exchange with one center, as with a server; slow to mix."""

from __future__ import annotations

from dataclasses import dataclass

from ..core import CompositionError, World


@dataclass(frozen=True)
class Star:
    """Receive from rank `center` with weight 1/n; the center receives from all, 1/n each. A server's traffic.

    Args:
        center: the rank in the middle.
    """

    center: int = 0

    changes = False

    def __post_init__(self) -> None:
        if self.center < 0:
            raise CompositionError(f"Star: center must be a rank, 0 or more, got {self.center}; 0 is usual")

    def weights(self, world: World, step: int) -> dict[int, float]:
        rank, size = world
        if self.center >= size:
            raise CompositionError(
                f"Star: center is rank {self.center} in a world of {size} ranks; use a rank below {size}"
            )
        if rank == self.center:
            return dict.fromkeys(range(size), 1 / size)
        return {rank: 1 - 1 / size, self.center: 1 / size}
