"""Sparse tensors that are added on the wire where any of them is not zero."""

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
from .support import agree_on_support, check_index, expected_index_bytes, expected_union, kept

_ALWAYS = frozenset(
    {Capability.LOSSLESS, Capability.WRAPS_COMPRESSOR, Capability.SUMS_NONZEROS, Capability.VARIABLE_SIZE}
)


@dataclass(frozen=True)
class UnionSum:
    """Agree where any rank sends something (d bits, OR), then add the n values there: d + b·n bits by all-reduce.

    Exactly what `gather` would give, whatever the compressor. It pays where ranks send the same coordinates.
    index="bloom" is shorter than a bitmap where little is sent; `false_positives` of the zeros then travel, too.
    """

    compressor: Compressor
    index: str = "bitmap"
    false_positives: float = 0.001

    def __post_init__(self) -> None:
        check_index("UnionSum", self.index, self.false_positives)

    @cached_property
    def capabilities(self) -> Capabilities:
        return _ALWAYS | inherit_capabilities(self.compressor, Capability.EXPECTS_BYTES)

    def init(self, spec: TensorSpec, key: Key) -> tuple[()]:
        return ()

    def expected_bytes(self, spec: TensorSpec, size: int) -> float:
        union = expected_union(self.compressor, spec, size)
        index = expected_index_bytes(union, self.index, self.false_positives, spec, size)
        return index + all_reduce_bytes(union * spec.work_dtype.itemsize, size)

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: tuple[()], ctx: Context) -> Program[Reduced[tuple[()]]]:
        flat = kept(self.compressor, tensor, spec, ctx)
        value = torch.zeros_like(flat)
        if spec.numel:
            positions = yield from agree_on_support(flat, self.index, self.false_positives, spec, ctx)
            if positions.numel():
                share = flat[positions] / ctx.world.size
                value[positions] = yield AllReduce(share, labels=reduce_labels(spec.name, share))
        return Reduced(value.view(spec.shape), flat.view(spec.shape), state)
