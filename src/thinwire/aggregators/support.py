"""Which coordinates are not zero on any rank: what all that add sparse tensors on the wire agree on first."""

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


class Bitmap(NamedTuple):
    """One bit a coordinate."""

    numel: int

    def mark(self, flat: Tensor) -> Tensor:
        return pack_bits(flat != 0, 1)

    def read(self, marks: Tensor) -> Tensor:
        return unpack_bits(marks, self.numel, 1).nonzero().flatten()


class Bloom(NamedTuple):
    """A Bloom filter: shorter than a bitmap where little is sent; some zeros seem to be sent, too."""

    numel: int
    num_bytes: int
    hashes: int
    key: Key

    def mark(self, flat: Tensor) -> Tensor:
        return bloom_bits(flat.nonzero().flatten(), self.num_bytes, self.hashes, self.key).to(flat.device)

    def read(self, marks: Tensor) -> Tensor:
        return bloom_positions(marks, self.numel, self.hashes, self.key).to(marks.device)


Index: TypeAlias = Bitmap | Bloom


def check_index(part: str, index: str, false_positives: float) -> None:
    if index not in INDEXES:
        raise CompositionError(f"{part}: index must be one of {', '.join(INDEXES)}, got {index!r}")
    if not 0 < false_positives < 1:
        raise CompositionError(
            f"{part}: false_positives must be between 0 and 1, got {false_positives}; 0.001 is usual"
        )


def kept(compressor: Compressor, tensor: Tensor, spec: TensorSpec, ctx: Context) -> Tensor:
    """What the compressor leaves of this rank's tensor: flat, in the type of sums, zero where nothing is sent."""
    key = ctx.key(spec.name, ctx.world.rank)
    return compressor.decode(compressor.encode(tensor, key), spec, key).to(spec.work_dtype).flatten()


def expected_union(compressor: Compressor, spec: TensorSpec, size: int) -> float:
    """How many coordinates some rank sends, as if ranks chose independently of each other: those that agree send less.

    Where a compressor that looks at coordinates does not count, as many as numbers would fit into what it sends;
    those that do not look leave none out.
    """
    sent = float(spec.numel)
    if counts_coordinates(compressor):
        sent = compressor.count(spec.numel)
    elif selects_coordinates(compressor):
        sent = compressor.num_bytes(spec) / spec.dtype.itemsize
    return spec.numel * (1 - (1 - min(1.0, sent / max(1, spec.numel))) ** size)


def expected_index_bytes(union: float, index: str, false_positives: float, spec: TensorSpec, size: int) -> float:
    """Of the index alone; a filter is told how many coordinates all ranks send together, which is no fewer."""
    most = packed_bytes(spec.numel, 1)
    if index == "bitmap":
        return all_reduce_bytes(most, size)
    return all_reduce_bytes(min(most, bloom_form(math.ceil(union), false_positives)[0]) + 8, size)


def index_for(count: int, false_positives: float, spec: TensorSpec, ctx: Context) -> Index:
    """A filter for at most `count` coordinates, or a bitmap where that is no longer."""
    num_bytes, hashes = bloom_form(count, false_positives)
    if num_bytes >= packed_bytes(spec.numel, 1):
        return Bitmap(spec.numel)
    return Bloom(spec.numel, num_bytes, hashes, derive_key(ctx.key(spec.name), "index"))


def choose_index(flat: Tensor, index: str, false_positives: float, spec: TensorSpec, ctx: Context) -> Program[Index]:
    """The form of index all ranks use. A filter must know how much it may have to hold: eight bytes, added up."""
    if index == "bitmap":
        return Bitmap(spec.numel)
    mine = torch.count_nonzero(flat).double().reshape(1)  # not whole, so that a flag can travel with it
    total = yield AllReduce(mine, labels=reduce_labels(spec.name, mine, "count"))
    return index_for(min(int(total), spec.numel), false_positives, spec, ctx)


def mark_request(index: Index, flat: Tensor, spec: TensorSpec) -> AllReduce:
    marks = index.mark(flat)
    return AllReduce(marks, Op.OR, reduce_labels(spec.name, marks, "index"))


def agree_on_support(
    flat: Tensor, index: str, false_positives: float, spec: TensorSpec, ctx: Context
) -> Program[Tensor]:
    """Positions, ascending, that hold all which are not zero on some rank; the same on every rank."""
    form = yield from choose_index(flat, index, false_positives, spec, ctx)
    marks = yield mark_request(form, flat, spec)
    return form.read(marks)
