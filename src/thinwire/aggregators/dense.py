"""Dense all-reduce: the exact average of uncompressed tensors, 2 b·d (n − 1)/n bits sent per rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..core import (
    AllReduce,
    Capabilities,
    Capability,
    Context,
    Key,
    Program,
    Reduced,
    SendForm,
    TensorSpec,
    all_reduce_bytes,
    reduce_labels,
)


@dataclass(frozen=True)
class Dense:
    """Average uncompressed tensors by all-reduce: b·d bits per layer. Exact."""

    capabilities: ClassVar[Capabilities] = frozenset({Capability.LOSSLESS, Capability.EXPECTS_BYTES})

    def init(self, spec: TensorSpec, key: Key) -> tuple[()]:
        return ()

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: tuple[()], ctx: Context) -> Program[Reduced[tuple[()]]]:
        return Reduced((yield from all_reduce_mean(tensor, spec, ctx)), tensor, state)

    def expected_bytes(self, spec: TensorSpec, size: int) -> float:
        return all_reduce_bytes(spec.numel * spec.dtype.itemsize, size)

    def send_form(self) -> SendForm:
        return SendForm.single(None)


def all_reduce_mean(tensor: Tensor, spec: TensorSpec, ctx: Context, kind: str = "values") -> Program[Tensor]:
    """The average of uncompressed tensors over ranks; `kind` is their name in the meter's tables."""
    share = tensor / ctx.world.size  # divided first, so that a sum of half-precision numbers cannot overflow
    return (yield AllReduce(share, labels=reduce_labels(spec.name, share, kind)))  # type: ignore[no-any-return]
