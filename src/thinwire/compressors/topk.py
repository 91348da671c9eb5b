"""The k largest coordinates."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..core import Compressor, Contract, Key, Payload, TensorSpec
from ..kernels import largest
from .identity import Identity
from .sparse import check_count, decode_kept, encode_kept, kept_count, kept_nbytes, then, values_spec


@dataclass(frozen=True)
class TopK:
    """Send the k largest |x| with their positions: k·(b + log2(d/k) + 1.5) bits. Biased, delta = k/d; wants feedback.

    Exactly k are sent; among equal magnitudes the first. `values` encodes what was kept: "bf16", power2(), qsgd() ...
    """

    density: float | None = None
    k: int | None = None
    values: Compressor = Identity()

    def __post_init__(self) -> None:
        check_count("TopK", self.density, self.k)

    def encode(self, tensor: Tensor, key: Key) -> Payload:
        flat = tensor.flatten()
        positions = largest(flat.abs(), kept_count(self.density, self.k, flat.numel()))
        return encode_kept(flat, positions, self.values, key)

    def decode(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        count = kept_count(self.density, self.k, spec.numel)
        return decode_kept(payload, spec, self.values, key, count, count)

    def contract(self, spec: TensorSpec) -> Contract:
        count = kept_count(self.density, self.k, spec.numel)
        return then(count / max(1, spec.numel), self.values, values_spec(spec, count))

    def nbytes(self, spec: TensorSpec) -> float:
        count = kept_count(self.density, self.k, spec.numel)
        return kept_nbytes(count, spec, self.values)
