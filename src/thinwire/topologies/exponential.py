"""Partners 1, 2, 4, 8 ... away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core import Capabilities, Capability, World
from .even import evenly


@dataclass(frozen=True)
class Exponential:
    """Hear the ranks 1, 2, 4 ... before one's own, equally: log₂ n partners. one_peer takes them in turn, by halves.

    One way only: who hears rank i are the ranks 1, 2, 4 ... after it. With one_peer and n a power of two, log₂ n steps
    give everybody the average.
    """

    capabilities: ClassVar[Capabilities] = frozenset({Capability.HAS_PERIOD, Capability.SUPPORTS_ONE_PEER})

    one_peer: bool = False

    @property
    def changes(self) -> bool:
        return self.one_peer

    def period(self, size: int) -> int:
        return len(distances(size)) or 1 if self.one_peer else 1

    def weights(self, world: World, step: int) -> dict[int, float]:
        rank, size = world
        away = distances(size)
        if self.one_peer and away:
            away = [away[step % len(away)]]
        return evenly(rank, [(rank - distance) % size for distance in away])


def distances(size: int) -> list[int]:
    """Powers of two below the number of ranks."""
    return [1 << k for k in range((size - 1).bit_length())]
