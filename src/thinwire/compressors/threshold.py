"""Hard thresholds: of a given level (Tolstobrov, 2022), or of a given mean count (Rethink-GS, Sahu et al., 2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import Capabilities, Capability, CompositionError, Compressor, Contract, Key, TensorSpec
from ..kernels import reaching
from .identity import Identity
from .sparse import Sparse, kept_nbytes


@dataclass(frozen=True)
class Threshold(Sparse):
    """Send every |x| > tau with its position: k_t·(b + log2(d/k_t) + 1.5) bits. Error^2 <= (d - k_t)·tau^2, no delta.

    Give tau, or a target `count`: then every |x| >= 1/(2 sqrt(count)) is sent, the hard threshold of Rethink-GS. How
    many are sent varies, and may be none.
    """

    capabilities: ClassVar[Capabilities] = Sparse.capabilities | {Capability.VARIABLE_SIZE}

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
        return self.tau if self.tau is not None else 1 / (2 * math.sqrt(self.count or 1))

    def select(self, scores: Tensor, key: Key) -> Tensor:
        del key  # deterministic
        return reaching(scores, self.level if self.tau is None else _next_above(self.tau, scores.dtype))

    def contract(self, spec: TensorSpec) -> Contract:
        return Contract()

    def num_bytes(self, spec: TensorSpec) -> float:
        """As if numbers had unit variance, for want of better knowledge."""
        return kept_nbytes(round(math.erfc(self.level / math.sqrt(2)) * spec.numel), spec, self.values)


def _next_above(level: float, dtype: torch.dtype) -> float:
    """The smallest number of this type above the level: what reaches it exceeds the level."""
    return torch.tensor(level, dtype=dtype).nextafter(torch.tensor(math.inf, dtype=dtype)).item()
