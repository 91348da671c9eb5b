"""Sparse all-reduce on the union of supports: a bitmap of nonzero positions by OR, then the sum of the values there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..core import (
    AllReduce,
    Capabilities,
    Capability,
    Compressor,
    Context,
    Key,
    Program,
    Reduced,
    TensorSpec,
    all_reduce_bytes,
    inherit_capabilities,
    reduce_labels,
)
from .sparse_index import (
    all_reduce_positions,
    check_index,
    compress_own,
    expected_union,
    expected_union_index_bytes,
)

_ALWAYS = frozenset(
    {Capability.LOSSLESS, Capability.WRAPS_COMPRESSOR, Capability.SUMS_NONZEROS, Capability.VARIABLE_SIZE}
)


@dataclass(frozen=True)
class UnionSum:
    """All-reduce a bitmap of nonzero positions by OR, then the n values of their union: d + b·n bits by all-reduce.

    The result is that of `gather`, with any compressor. It pays where ranks send the same coordinates.

    Args:
        compressor: what it leaves nonzero is sent.
        index: "bitmap", or "bloom", which is shorter where few coordinates are sent.
        false_positive_rate: fraction of the zeros that a Bloom filter takes for sent ones; they are sent as well.
    """

    compressor: Compressor
    index: str = "bitmap"
    false_positive_rate: float = 0.001

    def __post_init__(self) -> None:
        check_index("UnionSum", self.index, self.false_positive_rate)

    @cached_property
    def capabilities(self) -> Capabilities:
        return _ALWAYS | inherit_capabilities(self.compressor, Capability.EXPECTS_BYTES)

    def init(self, spec: TensorSpec, key: Key) -> tuple[()]:
        return ()

    def expected_bytes(self, spec: TensorSpec, size: int) -> float:
        union = expected_union(self.compressor, spec, size)
        index = expected_union_index_bytes(union, self.index, self.false_positive_rate, spec, size)
        return index + all_reduce_bytes(union * spec.work_dtype.itemsize, size)

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: tuple[()], ctx: Context) -> Program[Reduced[tuple[()]]]:
        own = compress_own(self.compressor, tensor, spec, ctx)
        value = torch.zeros_like(own)
        if spec.numel:
            positions = yield from all_reduce_positions(own, self.index, self.false_positive_rate, spec, ctx)
            if positions.numel():
                share = own[positions] / ctx.world.size
                value[positions] = yield AllReduce(share, labels=reduce_labels(spec.name, share))
        return Reduced(value.view(spec.shape), own.view(spec.shape), state)
