"""Exponential graph (Ying et al., 2021): rank i receives from ranks i − 1, i − 2, i − 4, ... (mod n)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core import Capabilities, Capability, World
from .uniform_weights import uniform_weights


@dataclass(frozen=True)
class Exponential:
    """Receive from ranks i − 1, i − 2, i − 4, ... with equal weights: log₂ n neighbors; one_peer takes one per step.

    Directed: rank i sends to ranks i + 1, i + 2, i + 4, ... With one_peer, a step averages two tensors; if n is a power
    of two, log₂ n steps give the exact average.

    Args:
        one_peer: receive from one of the neighbors per step, in turn.
    """

    capabilities: ClassVar[Capabilities] = frozenset({Capability.HAS_PERIOD, Capability.SUPPORTS_ONE_PEER})

    one_peer: bool = False

    @property
    def changes(self) -> bool:
        return self.one_peer

    def period(self, size: int) -> int:
        return len(powers_of_two(size)) or 1 if self.one_peer else 1

    def weights(self, world: World, step: int) -> dict[int, float]:
        rank, size = world
        offsets = powers_of_two(size)
        if self.one_peer and offsets:
            offsets = [offsets[step % len(offsets)]]
        return uniform_weights(rank, [(rank - offset) % size for offset in offsets])


def powers_of_two(size: int) -> list[int]:
    """1, 2, 4, ... below the number of ranks."""
    return [1 << k for k in range((size - 1).bit_length())]
