"""Base of sparsifiers that select coordinates by value: send coded positions, then the values there by `values`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from ..core import (
    DENSITY,
    Capabilities,
    Capability,
    CompositionError,
    Compressor,
    Contract,
    DecodeError,
    EncodedBatch,
    Key,
    LayerBatch,
    Part,
    Payload,
    TensorSpec,
    derive_key,
)
from ..kernels import add_saturated, decode_positions, scatter, sparse_mean, subtract_at, take
from ..wire import encode_indices, expect_count, expected_index_bytes
from .identity import Identity
from .sparse_batches import decode_mean_selected, encode_selected

_VALUES = "values"  # frozen: makes the random bits of the second stage


def check_count(part: str, density: float | None, k: int | None) -> None:
    """Raise CompositionError unless exactly one of density in (0, 1] and k >= 1 is given."""
    if (density is None) == (k is None):
        raise CompositionError(
            f"{part}: give either density or k, got density={density}, k={k}; density=0.01 keeps one in a hundred"
        )
    if density is not None and not 0 < density <= 1:
        raise CompositionError(
            f"{part}: density must be in (0, 1], got {density}; 0.01 keeps one coordinate in a hundred"
        )
    if k is not None and k < 1:
        raise CompositionError(f"{part}: k must be at least 1, got {k}")


@lru_cache  # asked for the same layers at every step
def count_kept(density: float | None, k: int | None, numel: int) -> int:
    """Return how many of `numel` coordinates are sent: at least one of a tensor that is not empty."""
    if k is not None:
        return min(k, numel)
    assert density is not None
    return min(numel, math.ceil(density * numel))


def values_spec(spec: TensorSpec, count: int) -> TensorSpec:
    """The spec of the kept values, a vector that `values` encodes."""
    return TensorSpec(spec.name, (count,), spec.dtype, spec.device)


def values_key(key: Key) -> Key:
    """The key with which `values` encodes."""
    return derive_key(key, _VALUES)


class SparseCompressor:
    """Base of compressors that select coordinates by value: positions in the shortest coding, then the values.

    Subclasses list in `declared` what they can do. Layers are batched as well, if values are sent as they are.
    """

    declared: ClassVar[Capabilities] = frozenset(
        {Capability.SELECTS_COORDINATES, Capability.CODES_POSITIONS, Capability.FUSES_RESIDUAL, Capability.DECODES_MEAN}
    )

    values: Compressor

    @cached_property
    def capabilities(self) -> Capabilities:
        return self.declared | {Capability.BATCHES_LAYERS} if isinstance(self.values, Identity) else self.declared

    def select(self, scores: Tensor, key: Key) -> Tensor:
        raise NotImplementedError

    def bounds(self, numel: int) -> tuple[int, int]:
        """Return the least and the largest number of coordinates that may be sent."""
        return 0, numel

    def for_shard(self, num_shards: int) -> Compressor:
        return self  # type: ignore[return-value]

    def encode(self, tensor: Tensor, key: Key) -> Payload:
        flat = tensor.flatten()
        positions = self.select(flat, key)
        return self.encode_at(self.take(flat, positions), positions, flat.numel(), key)

    def take(self, flat: Tensor, positions: Tensor) -> Tensor:
        return take(flat, positions)

    def encode_at(self, kept: Tensor, positions: Tensor, numel: int, key: Key) -> Payload:
        return self._payload(kept, encode_indices(positions, numel), key)

    def _payload(self, kept: Tensor, indices: Part, key: Key) -> Payload:
        return self.values.encode(kept, values_key(key)).prepend(indices)

    def encode_with_residual(self, tensor: Tensor, residual: Tensor, key: Key) -> tuple[Payload, Tensor]:
        """Encode tensor + residual; the new residual differs from the sum only where something was sent."""
        target = add_saturated(tensor.flatten(), residual.flatten())
        positions = self.select(target, key)
        payload = self.encode_at(self.take(target, positions), positions, target.numel(), key)
        sent = self._values(payload, TensorSpec.of("", target), positions.numel(), key)
        subtract_at(target, positions, sent)  # in place: the target becomes the new residual
        return payload, target.view(tensor.shape)

    def select_many(self, flats: Sequence[Tensor], keys: Sequence[Key]) -> tuple[Tensor, Sequence[int]]:
        """`select` of each layer, one after another, and how many there are of each."""
        positions = [self.select(flat, key) for flat, key in zip(flats, keys, strict=True)]
        return torch.cat(positions), [each.numel() for each in positions]

    def encode_many(self, batch: LayerBatch, keys: Sequence[Key]) -> EncodedBatch:
        return encode_selected(self, batch, keys)

    def decode_mean_many(
        self,
        payloads: Sequence[Payload],
        specs: Sequence[TensorSpec],
        keys: Sequence[Sequence[Key]],
        outs: Sequence[Tensor],
    ) -> None:
        del keys  # values are sent as they are
        decode_mean_selected(self, payloads, specs, outs)

    def decode(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        return self._decode(payload, spec, key, *self.bounds(spec.numel))

    def decode_at(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        return self._decode(payload, spec, key, 0, spec.numel)

    def _decode(self, payload: Payload, spec: TensorSpec, key: Key, min_count: int, max_count: int) -> Tensor:
        kept = self._kept(payload, spec, key, min_count, max_count)
        positions = decode_positions(payload.parts[0], kept.numel(), spec.numel)
        return scatter(kept, positions, spec.numel).view(spec.shape)

    def decode_mean(
        self, payloads: Sequence[Payload], spec: TensorSpec, keys: Sequence[Key], out: Tensor | None = None
    ) -> Tensor:
        bounds = self.bounds(spec.numel)
        kept = [self._kept(payload, spec, key, *bounds) for payload, key in zip(payloads, keys, strict=True)]
        return sparse_mean(out, kept, [payload.parts[0] for payload in payloads], spec.numel).view(spec.shape)

    def _kept(self, payload: Payload, spec: TensorSpec, key: Key, min_count: int, max_count: int) -> Tensor:
        """Decode the values. The decoder of the positions checks that there are as many of them."""
        if not payload.parts:
            raise DecodeError(f"{type(self).__name__}: expected indices and values, got an empty payload")
        if min_count < max_count:
            return self._values(payload, spec, expect_count(payload.parts[0], min_count, max_count), key)
        try:
            return self._values(payload, spec, min_count, key)
        except DecodeError:
            expect_count(payload.parts[0], min_count, max_count)  # a wrong count is the more useful error
            raise

    def _values(self, payload: Payload, spec: TensorSpec, count: int, key: Key) -> Tensor:
        return self.values.decode(Payload(payload.parts[1:]), values_spec(spec, count), values_key(key))


@dataclass(frozen=True)
class FixedCountCompressor(SparseCompressor):
    """Base of sparsifiers that send a fixed number of coordinates: a density of the tensor, or k."""

    tunable = DENSITY
    declared: ClassVar[Capabilities] = SparseCompressor.declared | {
        Capability.COUNTS_COORDINATES,
        Capability.EXPECTS_BYTES,
    }

    density: float | None = None
    k: int | None = None
    values: Compressor = Identity()

    def __post_init__(self) -> None:
        check_count(type(self).__name__, self.density, self.k)

    def count(self, numel: int) -> int:
        return count_kept(self.density, self.k, numel)

    def bounds(self, numel: int) -> tuple[int, int]:
        return self.count(numel), self.count(numel)

    def for_shard(self, num_shards: int) -> Compressor:
        return super().for_shard(num_shards) if self.k is None else replace(self, k=-(-self.k // num_shards))  # type: ignore[return-value]

    def num_bytes(self, spec: TensorSpec) -> float:
        return estimate_num_bytes(self.count(spec.numel), spec, self.values)


def estimate_num_bytes(count: int, spec: TensorSpec, values: Compressor) -> float:
    """Return the expected size of `count` positions and values."""
    return expected_index_bytes(count, spec.numel) + values.num_bytes(values_spec(spec, count))


def delta_of_values(values: Compressor, spec: TensorSpec) -> float | None:
    """Return delta of the second stage on the kept values; an unbiased one with omega < 1 has delta 1 - omega."""
    inner = values.contract(spec)
    if inner.delta is not None:
        return inner.delta
    return None if inner.omega is None or inner.omega >= 1 else 1 - inner.omega


def combine_contracts(delta: float, values: Compressor, spec: TensorSpec) -> Contract:
    """Return the contract of a sparsifier that keeps a fraction delta of |x|², of which `values` loses some."""
    inner = delta_of_values(values, spec)
    return Contract() if inner is None else Contract(delta=delta * inner)
