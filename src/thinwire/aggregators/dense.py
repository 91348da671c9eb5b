"""The exact average."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..core import AllReduce, Context, Key, Program, Reduced, TensorSpec, reduce_labels


@dataclass(frozen=True)
class Dense:
    """Average the tensors as they are, by all-reduce: b·d bits. Exact."""

    def init(self, spec: TensorSpec, key: Key) -> tuple[()]:
        return ()

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: tuple[()], ctx: Context) -> Program[Reduced[tuple[()]]]:
        share = tensor / ctx.world.size  # divided first, so that a sum of half-precision numbers cannot overflow
        value = yield AllReduce(share, labels=reduce_labels(spec.name, share))
        return Reduced(value, tensor, state)
