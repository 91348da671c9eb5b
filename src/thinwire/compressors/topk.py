"""The k largest coordinates."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..core import Contract, Key, TensorSpec
from ..kernels import add_largest, largest_magnitudes
from .sparse import Counted, then, values_spec


@dataclass(frozen=True)
class TopK(Counted):
    """Send the k largest |x| with their positions: k·(b + log2(d/k) + 1.5) bits. Biased, delta = k/d; wants feedback.

    Exactly k are sent; among equal magnitudes the first. `values` encodes what was kept: "bf16", power2(), qsgd() ...
    """

    def choose(self, scores: Tensor, key: Key) -> Tensor:
        del key  # deterministic
        return largest_magnitudes(scores, self.count(scores.numel()))

    def _add_and_choose(self, flat: Tensor, residual: Tensor, key: Key) -> tuple[Tensor, Tensor]:
        del key
        return add_largest(flat, residual, self.count(flat.numel()))

    def contract(self, spec: TensorSpec) -> Contract:
        count = self.count(spec.numel)
        return then(count / max(1, spec.numel), self.values, values_spec(spec, count))
