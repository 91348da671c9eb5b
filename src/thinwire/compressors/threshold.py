"""Hard threshold (Tolstobrov, 2022; by count: Rethink-GS, Sahu et al., 2021): send all |x| above a fixed level."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from ..core import Capabilities, Capability, CompositionError, Compressor, Contract, Key, TensorSpec
from ..kernels import positions_reaching, positions_reaching_many
from .identity import Identity
from .sparse import SparseCompressor, estimate_num_bytes


@dataclass(frozen=True)
class Threshold(SparseCompressor):
    """Send every |x| > tau with its position: k_t·(b + log2(d/k_t) + 1.5) bits. Error^2 <= (d - k_t)·tau^2, no delta.

    The number of coordinates sent varies and may be zero.

    Args:
        tau: send |x| > tau; give either this or count.
        count: send |x| >= 1 / (2 sqrt(count)), the hard threshold of Rethink-GS. It is not a promise to send `count`.
        values: compressor of the kept values.
    """

    declared: ClassVar[Capabilities] = SparseCompressor.declared | {Capability.VARIABLE_SIZE}

    tau: float | None = None
    count: int | None = None
    values: Compressor = Identity()

    def __post_init__(self) -> None:
        if (self.tau is None) == (self.count is None):
            raise CompositionError(f"Threshold: give either tau or count, got tau={self.tau}, count={self.count}")
        if self.tau is not None and not 0 <= self.tau < math.inf:
            raise CompositionError(
                f"Threshold: tau must be finite and not negative, got {self.tau}; 0.01 is an example"
            )
        if self.count is not None and self.count < 1:
            raise CompositionError(f"Threshold: count must be at least 1, got {self.count}")

    @property
    def level(self) -> float:
        """The threshold: tau, or what follows from count."""
        return self.tau if self.tau is not None else 1 / (2 * math.sqrt(self.count or 1))

    def select(self, scores: Tensor, key: Key) -> Tensor:
        del key  # deterministic
        return positions_reaching(scores, self._least(scores.dtype))

    def select_many(self, flats: Sequence[Tensor], keys: Sequence[Key]) -> tuple[Tensor, Sequence[int]]:
        del keys
        return positions_reaching_many(flats, [self._least(flats[0].dtype)] * len(flats))

    def _least(self, dtype: torch.dtype) -> float:
        """The smallest magnitude that is sent."""
        return self.level if self.tau is None else _next_float(self.tau, dtype)

    def contract(self, spec: TensorSpec) -> Contract:
        return Contract()

    def num_bytes(self, spec: TensorSpec) -> float:
        """Return the size for values of unit variance; the true one depends on the tensor."""
        return estimate_num_bytes(round(math.erfc(self.level / math.sqrt(2)) * spec.numel), spec, self.values)


@lru_cache  # the same at every step
def _next_float(level: float, dtype: torch.dtype) -> float:
    """Return the next number of this type: |x| > level is |x| >= this."""
    return torch.tensor(level, dtype=dtype).nextafter(torch.tensor(math.inf, dtype=dtype)).item()
