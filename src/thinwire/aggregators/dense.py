"""Dense all-reduce: the exact average of uncompressed tensors, 2 b·d (n − 1)/n bits sent per rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import (
    AllReduce,
    Capabilities,
    Capability,
    Context,
    Key,
    LayerBatch,
    Program,
    Reduced,
    ReducedBatch,
    SendForm,
    TensorSpec,
    all_finite,
    all_reduce_bytes,
    reduce_labels,
    reduce_singly,
)
from ..kernels.memory import empty

_PIECE = 1 << 16  # numbers that fit the cache of a core


@dataclass(frozen=True)
class Dense:
    """Average uncompressed tensors by all-reduce: b·d bits per layer. Exact."""

    capabilities: ClassVar[Capabilities] = frozenset(
        {Capability.LOSSLESS, Capability.EXPECTS_BYTES, Capability.BATCHES_LAYERS}
    )

    def init(self, spec: TensorSpec, key: Key) -> tuple[()]:
        return ()

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: tuple[()], ctx: Context) -> Program[Reduced[tuple[()]]]:
        return Reduced((yield from all_reduce_mean(tensor, spec, ctx)), tensor, state)

    def reduce_many(self, batch: LayerBatch, ctx: Context) -> Program[ReducedBatch]:
        """One all-reduce of all layers as one vector; with residuals, layer by layer."""
        if batch.residuals is not None:
            return (yield from reduce_singly(self, batch, ctx))
        share = _scaled_vector(batch, ctx)
        labels = [reduce_labels(spec.name, tensor)[0] for spec, tensor in zip(batch.specs, batch.tensors, strict=True)]
        out = None if batch.outs is None else adjacent_vector(batch.outs)
        total = yield AllReduce(share, labels=tuple(labels), out=out)
        sizes = [spec.numel for spec in batch.specs]

        def write_values(outs: Sequence[Tensor]) -> None:
            if (whole := adjacent_vector(outs)) is not None:
                if whole.data_ptr() != total.data_ptr():  # else the driver has written to `out`
                    whole.copy_(total)
                return
            for out, piece in zip(outs, torch.split(total, sizes), strict=True):
                out.copy_(piece.view(out.shape))

        def layer(i: int) -> Reduced[tuple[()]]:
            start, tensor = sum(sizes[:i]), batch.tensors[i]
            return Reduced(total[start : start + sizes[i]].view(tensor.shape), tensor, ())

        return ReducedBatch(list(batch.states), None, write_values, layer)

    def expected_bytes(self, spec: TensorSpec, size: int) -> float:
        return all_reduce_bytes(spec.numel * spec.dtype.itemsize, size)

    def send_form(self) -> SendForm:
        return SendForm.single(None)


def _scaled_vector(batch: LayerBatch, ctx: Context) -> Tensor:
    """All tensors divided by the number of ranks, as one vector; zeros if one is not finite."""
    share = empty(sum([spec.numel for spec in batch.specs]))
    flat = adjacent_vector(batch.tensors)
    if flat is None:
        flat = torch.cat([tensor.flatten() for tensor in batch.tensors], out=share)
    if not _divide(flat, ctx.world.size, share):
        ctx.nonfinite.extend(name for name, t in zip(batch.names, batch.tensors, strict=True) if not all_finite(t))
        share.zero_()
    return share


def _divide(vector: Tensor, divisor: int, out: Tensor) -> bool:
    """Write the quotients to `out`, up to the first piece that is not finite; whether there is none.

    Each piece is tested while it is in the cache.
    """
    pieces = zip(torch.split(vector, _PIECE), torch.split(out, _PIECE), strict=True)
    return all(all_finite(torch.div(piece, divisor, out=quotients)) for piece, quotients in pieces)


def adjacent_vector(tensors: Sequence[Tensor]) -> Tensor | None:
    """A view of all tensors as one vector, if they lie one after another in memory, as in a bucket of DDP."""
    first, at = tensors[0], tensors[0].storage_offset()
    storage = first.untyped_storage().data_ptr()
    for tensor in tensors:
        if not tensor.is_contiguous() or tensor.storage_offset() != at or tensor.dtype != first.dtype:
            return None
        if tensor.untyped_storage().data_ptr() != storage:
            return None
        at += tensor.numel()
    return first.as_strided((at - first.storage_offset(),), (1,), first.storage_offset())


def all_reduce_mean(tensor: Tensor, spec: TensorSpec, ctx: Context, kind: str = "values") -> Program[Tensor]:
    """The average of uncompressed tensors over ranks; `kind` is their name in the meter's tables."""
    share = tensor / ctx.world.size  # divided first, so that a sum of half-precision numbers cannot overflow
    return (yield AllReduce(share, labels=reduce_labels(spec.name, share, kind)))  # type: ignore[no-any-return]
