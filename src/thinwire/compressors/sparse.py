"""What all operators share that send some coordinates and not others: how many, and how the kept values travel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

from torch import Tensor

from ..core import (
    DENSITY,
    Capabilities,
    Capability,
    CompositionError,
    Compressor,
    Contract,
    DecodeError,
    Key,
    Part,
    Payload,
    TensorSpec,
    derive_key,
)
from ..kernels import add_saturated, decode_positions, scatter, sparse_mean, subtract_at, take
from ..wire import encode_indices, expect_count, expected_index_bytes
from .identity import Identity


def check_count(part: str, density: float | None, k: int | None) -> None:
    """Exactly one of density in (0, 1] and k >= 1."""
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


@lru_cache  # a layer's is the same at every step
def kept_count(density: float | None, k: int | None, numel: int) -> int:
    """How many coordinates of `numel` are sent: at least one of a tensor that has any."""
    if k is not None:
        return min(k, numel)
    assert density is not None
    return min(numel, math.ceil(density * numel))


def values_spec(spec: TensorSpec, count: int) -> TensorSpec:
    """The kept values as a vector of their own, for the operator that encodes them."""
    return TensorSpec(spec.name, (count,), spec.dtype, spec.device)


def values_key(key: Key) -> Key:
    return derive_key(key, "values")


class Sparse:
    """Base of all that choose coordinates by looking at them: positions in the cheapest coding, then their values."""

    capabilities: ClassVar[Capabilities] = frozenset(
        {Capability.SELECTS_COORDINATES, Capability.CODES_POSITIONS, Capability.FUSES_RESIDUAL, Capability.DECODES_MEAN}
    )

    values: Compressor

    def select(self, scores: Tensor, key: Key) -> Tensor:
        raise NotImplementedError

    def bounds(self, numel: int) -> tuple[int, int]:
        """How few and how many of `numel` coordinates are sent."""
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
        """Only what is sent differs from the target, so only there is anything subtracted."""
        rest = add_saturated(tensor.flatten(), residual.flatten())
        positions = self.select(rest, key)
        payload = self.encode_at(self.take(rest, positions), positions, rest.numel(), key)
        subtract_at(rest, positions, self._values(payload, TensorSpec.of("", rest), positions.numel(), key))
        return payload, rest.view(tensor.shape)

    def decode(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        return self._decode(payload, spec, key, *self.bounds(spec.numel))

    def decode_at(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        return self._decode(payload, spec, key, 0, spec.numel)

    def _decode(self, payload: Payload, spec: TensorSpec, key: Key, least: int, most: int) -> Tensor:
        kept = self._kept(payload, spec, key, least, most)
        positions = decode_positions(payload.parts[0], kept.numel(), spec.numel)
        return scatter(kept, positions, spec.numel).view(spec.shape)

    def decode_mean(
        self, payloads: Sequence[Payload], spec: TensorSpec, keys: Sequence[Key], out: Tensor | None = None
    ) -> Tensor:
        bounds = self.bounds(spec.numel)
        kept = [self._kept(payload, spec, key, *bounds) for payload, key in zip(payloads, keys, strict=True)]
        return sparse_mean(out, kept, [payload.parts[0] for payload in payloads], spec.numel).view(spec.shape)

    def _kept(self, payload: Payload, spec: TensorSpec, key: Key, least: int, most: int) -> Tensor:
        """The values; whoever reads the positions sees to it that there are as many."""
        if not payload.parts:
            raise DecodeError("indices and values expected, got no part")
        if least < most:
            return self._values(payload, spec, expect_count(payload.parts[0], least, most), key)
        try:
            return self._values(payload, spec, least, key)
        except DecodeError:
            expect_count(payload.parts[0], least, most)  # if there are others than agreed, that is what to say
            raise

    def _values(self, payload: Payload, spec: TensorSpec, count: int, key: Key) -> Tensor:
        return self.values.decode(Payload(payload.parts[1:]), values_spec(spec, count), values_key(key))


@dataclass(frozen=True)
class Counted(Sparse):
    """Base of those that send a fixed number of coordinates: a density of the tensor, or k."""

    tunable = DENSITY
    capabilities: ClassVar[Capabilities] = Sparse.capabilities | {
        Capability.COUNTS_COORDINATES,
        Capability.EXPECTS_BYTES,
    }

    density: float | None = None
    k: int | None = None
    values: Compressor = Identity()

    def __post_init__(self) -> None:
        check_count(type(self).__name__, self.density, self.k)

    def count(self, numel: int) -> int:
        return kept_count(self.density, self.k, numel)

    def bounds(self, numel: int) -> tuple[int, int]:
        return self.count(numel), self.count(numel)

    def for_shard(self, num_shards: int) -> Compressor:
        return super().for_shard(num_shards) if self.k is None else replace(self, k=-(-self.k // num_shards))  # type: ignore[return-value]

    def num_bytes(self, spec: TensorSpec) -> float:
        return kept_nbytes(self.count(spec.numel), spec, self.values)


def kept_nbytes(count: int, spec: TensorSpec, values: Compressor) -> float:
    """Expected size of `count` positions and values."""
    return expected_index_bytes(count, spec.numel) + values.num_bytes(values_spec(spec, count))


def contraction_of_values(values: Compressor, spec: TensorSpec) -> float | None:
    """delta of the second stage on the kept values; an unbiased one with omega < 1 leaves 1 - omega."""
    inner = values.contract(spec)
    if inner.delta is not None:
        return inner.delta
    return None if inner.omega is None or inner.omega >= 1 else 1 - inner.omega


def then(delta: float, values: Compressor, spec: TensorSpec) -> Contract:
    """Keep a share delta of the energy, then lose some of that in the second stage."""
    inner = contraction_of_values(values, spec)
    return Contract() if inner is None else Contract(delta=delta * inner)
