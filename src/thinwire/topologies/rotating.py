"""Rotating gossip (Tolstobrov, 2022): at each step rank i exchanges with ranks i − s and i + s for the next s."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core import Capabilities, Capability, World


@dataclass(frozen=True)
class Rotating:
    """Receive from ranks i − s and i + s, weights 1/3; s = 1, 2, ..., ⌊n/2⌋, then 1 again, one value per step.

    Where both are the same rank (n even, s = n/2), one message is sent and has weight 2/3, as if it were two.

    Args:
        equal_pairs: where both are the same rank, give both tensors the weight 1/2.
    """

    capabilities: ClassVar[Capabilities] = frozenset({Capability.HAS_PERIOD})

    equal_pairs: bool = False

    changes = True

    def period(self, size: int) -> int:
        return max(1, size // 2)

    def weights(self, world: World, step: int) -> dict[int, float]:
        rank, size = world
        if size == 1:
            return {rank: 1.0}
        s = 1 + step % (size // 2)
        left, right = (rank - s) % size, (rank + s) % size
        if left == right:
            return {rank: 1 / 2, right: 1 / 2} if self.equal_pairs else {rank: 1 / 3, right: 2 / 3}
        return dict.fromkeys(sorted((left, rank, right)), 1 / 3)
