"""Hypercube: rank i exchanges with the log₂ n ranks that differ from i in one bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core import Capabilities, Capability, CompositionError, World
from .uniform_weights import uniform_weights


@dataclass(frozen=True)
class Hypercube:
    """Receive from the log₂ n ranks that differ from i in one bit, with equal weights; n must be a power of two.

    Args:
        one_peer: exchange with one neighbor per step and average two tensors: log₂ n steps give the exact average.
    """

    capabilities: ClassVar[Capabilities] = frozenset({Capability.HAS_PERIOD, Capability.SUPPORTS_ONE_PEER})

    one_peer: bool = False

    @property
    def changes(self) -> bool:
        return self.one_peer

    def period(self, size: int) -> int:
        return max(1, size.bit_length() - 1) if self.one_peer else 1

    def weights(self, world: World, step: int) -> dict[int, float]:
        rank, size = world
        if size & (size - 1):
            raise CompositionError(
                f"Hypercube: the number of ranks must be a power of two, got {size}; exponential() takes any number"
            )
        bits = range(size.bit_length() - 1)
        if self.one_peer and bits:
            bits = range(step % len(bits), step % len(bits) + 1)
        return uniform_weights(rank, [rank ^ (1 << bit) for bit in bits])
