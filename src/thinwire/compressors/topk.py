"""The k largest coordinates."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from ..core import Compressor, Contract, Key, TensorSpec
from ..kernels import largest
from .identity import Identity
from .sparse import Sparse, check_count, kept_count, kept_nbytes, then, values_spec


@dataclass(frozen=True)
class TopK(Sparse):
    """Send the k largest |x| with their positions: k·(b + log2(d/k) + 1.5) bits. Biased, delta = k/d; wants feedback.

    Exactly k are sent; among equal magnitudes the first. `values` encodes what was kept: "bf16", power2(), qsgd() ...
    """

    density: float | None = None
    k: int | None = None
    values: Compressor = Identity()

    def __post_init__(self) -> None:
        check_count("TopK", self.density, self.k)

    def choose(self, scores: Tensor, key: Key) -> Tensor:
        del key  # deterministic
        return largest(scores.abs(), kept_count(self.density, self.k, scores.numel()))

    def bounds(self, numel: int) -> tuple[int, int]:
        count = kept_count(self.density, self.k, numel)
        return count, count

    def share(self, pieces: int) -> TopK:
        return self if self.k is None else replace(self, k=-(-self.k // pieces))

    def contract(self, spec: TensorSpec) -> Contract:
        count = kept_count(self.density, self.k, spec.numel)
        return then(count / max(1, spec.numel), self.values, values_spec(spec, count))

    def nbytes(self, spec: TensorSpec) -> float:
        count = kept_count(self.density, self.k, spec.numel)
        return kept_nbytes(count, spec, self.values)
