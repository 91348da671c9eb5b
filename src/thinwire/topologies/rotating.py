"""Partners that change at every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core import Capabilities, Capability, World


@dataclass(frozen=True)
class Rotating:
    """Hear ranks i − s and i + s, 1/3 each; s goes 1, 2 ... ⌊n/2⌋ and round again, one further at every step.

    Where both are the same rank (n even, s = n/2) one message travels, and counts 2/3 as if it were two; pair=true
    takes halves there instead.
    """

    capabilities: ClassVar[Capabilities] = frozenset({Capability.HAS_PERIOD})

    pair: bool = False

    changes = True

    def period(self, size: int) -> int:
        return max(1, size // 2)

    def weights(self, world: World, step: int) -> dict[int, float]:
        rank, size = world
        if size == 1:
            return {rank: 1.0}
        s = 1 + step % (size // 2)
        before, after = (rank - s) % size, (rank + s) % size
        if before == after:
            return {rank: 1 / 2, after: 1 / 2} if self.pair else {rank: 1 / 3, after: 2 / 3}
        return dict.fromkeys(sorted((before, rank, after)), 1 / 3)
