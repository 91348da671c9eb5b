"""The k largest coordinates."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..core import Compressor, Contract, DecodeError, Key, Payload, TensorSpec
from ..kernels import largest
from ..wire import decode_indices, encode_indices, expected_index_bytes
from .identity import Identity
from .sparse import check_count, kept_count, scatter, then, values_key, values_spec


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
        kept = self.values.encode(flat[positions], values_key(key))
        return Payload.of([encode_indices(positions, flat.numel()), *kept.remarks()])

    def decode(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        if not payload.parts:
            raise DecodeError("TopK: indices and values expected, got no part")
        count = kept_count(self.density, self.k, spec.numel)
        positions = decode_indices(payload.parts[0], spec.numel, most=count)
        if positions.numel() != count:
            raise DecodeError(f"TopK: {count} positions expected, got {positions.numel()}")
        kept = self.values.decode(Payload(payload.parts[1:]), values_spec(spec, count), values_key(key))
        return scatter(kept, positions, spec)

    def contract(self, spec: TensorSpec) -> Contract:
        count = kept_count(self.density, self.k, spec.numel)
        return then(count / max(1, spec.numel), self.values, values_spec(spec, count))

    def nbytes(self, spec: TensorSpec) -> float:
        count = kept_count(self.density, self.k, spec.numel)
        return expected_index_bytes(count, spec.numel) + self.values.nbytes(values_spec(spec, count))
