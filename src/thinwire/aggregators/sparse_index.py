"""The union of all ranks' nonzero positions, as a bitmap or Bloom filter combined by OR (`union`, `sketch`)."""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from ..core import (
    AllReduce,
    CompositionError,
    Compressor,
    Context,
    Key,
    Op,
    Program,
    TensorSpec,
    all_reduce_bytes,
    counts_coordinates,
    derive_key,
    reduce_labels,
    selects_coordinates,
)
from ..kernels import bloom_bits, bloom_form, bloom_positions
from ..wire import pack_bits, packed_bytes, unpack_bits

INDEXES = ("bitmap", "bloom")
_BLOOM_KEY = "index"  # frozen: makes the random bits


class BitmapIndex(NamedTuple):
    """One bit per coordinate: d bits."""

    numel: int

    def encode(self, flat: Tensor) -> Tensor:
        """The bits of a rank's nonzero positions, packed."""
        return pack_bits(flat != 0, 1)

    def decode(self, bits: Tensor) -> Tensor:
        """Positions, ascending."""
        return unpack_bits(bits, self.numel, 1).nonzero().flatten()


class BloomIndex(NamedTuple):
    """A Bloom filter: shorter than a bitmap where few coordinates are sent; some zeros are taken for sent ones."""

    numel: int
    num_bytes: int
    hashes: int
    key: Key

    def encode(self, flat: Tensor) -> Tensor:
        """The filter's bits for a rank's nonzero positions, packed."""
        return bloom_bits(flat.nonzero().flatten(), self.num_bytes, self.hashes, self.key).to(flat.device)

    def decode(self, bits: Tensor) -> Tensor:
        """Positions that may be in the filter, ascending."""
        return bloom_positions(bits, self.numel, self.hashes, self.key).to(bits.device)


SparseIndex: TypeAlias = BitmapIndex | BloomIndex


def check_index(part: str, index: str, false_positive_rate: float) -> None:
    """Raise CompositionError for an unknown kind of index or an impossible rate."""
    if index not in INDEXES:
        raise CompositionError(
            f"{part}: index must be one of {', '.join(INDEXES)}, got {index!r}; bitmap serves all densities"
        )
    if not 0 < false_positive_rate < 1:
        raise CompositionError(
            f"{part}: false_positive_rate must be between 0 and 1, got {false_positive_rate}; 0.001 is usual"
        )


def compress_own(compressor: Compressor, tensor: Tensor, spec: TensorSpec, ctx: Context) -> Tensor:
    """C(x) of this rank's tensor: flat, in the dtype of sums, zero where nothing is sent."""
    key = ctx.key(spec.name, ctx.world.rank)
    return compressor.decode(compressor.encode(tensor, key), spec, key).to(spec.work_dtype).flatten()


def expected_union(compressor: Compressor, spec: TensorSpec, size: int) -> float:
    """The expected number of coordinates in the union, if ranks select independently; ranks that agree send fewer.

    A compressor that selects coordinates but does not count them is taken to send as many as values fit into its
    payload; one that does not select is taken to send all.
    """
    sent = float(spec.numel)
    if counts_coordinates(compressor):
        sent = compressor.count(spec.numel)
    elif selects_coordinates(compressor):
        sent = compressor.num_bytes(spec) / spec.dtype.itemsize
    return spec.numel * (1 - (1 - min(1.0, sent / max(1, spec.numel))) ** size)


def expected_union_index_bytes(
    union: float, index: str, false_positive_rate: float, spec: TensorSpec, size: int
) -> float:
    """Bytes that the index alone costs a rank. A filter is sized for the sum of all ranks' counts."""
    bitmap_bytes = packed_bytes(spec.numel, 1)
    if index == "bitmap":
        return all_reduce_bytes(bitmap_bytes, size)
    return all_reduce_bytes(min(bitmap_bytes, bloom_form(math.ceil(union), false_positive_rate)[0]) + 8, size)


def make_index(count: int, false_positive_rate: float, spec: TensorSpec, ctx: Context) -> SparseIndex:
    """A Bloom filter for at most `count` coordinates, or a bitmap if that is no longer."""
    num_bytes, hashes = bloom_form(count, false_positive_rate)
    if num_bytes >= packed_bytes(spec.numel, 1):
        return BitmapIndex(spec.numel)
    return BloomIndex(spec.numel, num_bytes, hashes, derive_key(ctx.key(spec.name), _BLOOM_KEY))


def agree_on_index(
    flat: Tensor, index: str, false_positive_rate: float, spec: TensorSpec, ctx: Context
) -> Program[SparseIndex]:
    """The index that all ranks use. The size of a filter follows from the sum of all ranks' counts: eight bytes."""
    if index == "bitmap":
        return BitmapIndex(spec.numel)
    own = torch.count_nonzero(flat).double().reshape(1)  # a float, so that the bad-step flag can be added to it
    total = yield AllReduce(own, labels=reduce_labels(spec.name, own, "count"))
    return make_index(min(int(total), spec.numel), false_positive_rate, spec, ctx)


def index_request(index: SparseIndex, flat: Tensor, spec: TensorSpec) -> AllReduce:
    """The all-reduce by OR of all ranks' indexes."""
    bits = index.encode(flat)
    return AllReduce(bits, Op.OR, reduce_labels(spec.name, bits, "index"))


def all_reduce_positions(
    flat: Tensor, index: str, false_positive_rate: float, spec: TensorSpec, ctx: Context
) -> Program[Tensor]:
    """Positions, ascending and the same on all ranks, that include all that are nonzero on any rank."""
    agreed = yield from agree_on_index(flat, index, false_positive_rate, spec, ctx)
    bits = yield index_request(agreed, flat, spec)
    return agreed.decode(bits)
