"""All-gather aggregation: each rank receives all payloads, decodes and averages them in rank order.

Works with any compressor; a rank sends s (n − 1) bytes for a payload of s bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..core import (
    AllGather,
    BatchCompressor,
    Capabilities,
    Capability,
    Compressor,
    Context,
    GatheredPayloads,
    Key,
    LayerBatch,
    Payload,
    Program,
    Reduced,
    ReducedBatch,
    SendForm,
    TensorSpec,
    batch_labels,
    codes_positions,
    cut_all,
    decodes_mean,
    encodes_with_residual,
    estimate_compressor_errors,
    has,
    inherit_capabilities,
    payload_labels,
    reduce_and_subtract,
    repeat_names,
)
from ..kernels import add_sparse_many

_INHERITED = (
    Capability.ESTIMATES_ERRORS,
    Capability.EXPECTS_BYTES,
    Capability.BATCHES_LAYERS,
    Capability.FUSES_ESTIMATE,
)
_ALWAYS = frozenset(
    {Capability.LOSSLESS, Capability.WRAPS_COMPRESSOR, Capability.SENDS_ONE_PAYLOAD, Capability.FUSES_RESIDUAL}
)


@dataclass(frozen=True)
class GatherMean:
    """All-gather the payloads, decode and average them: any compressor; bytes grow with n − 1.

    Args:
        compressor: encodes what all other ranks receive.
    """

    compressor: Compressor

    @cached_property
    def capabilities(self) -> Capabilities:
        return _ALWAYS | inherit_capabilities(self.compressor, *_INHERITED)

    def init(self, spec: TensorSpec, key: Key) -> tuple[()]:
        return ()

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: tuple[()], ctx: Context) -> Program[Reduced[tuple[()]]]:
        payload = self.compressor.encode(tensor, ctx.key(spec.name, ctx.world.rank))
        return (yield from self._gather(payload, spec, state, ctx))

    def reduce_many(self, batch: LayerBatch, ctx: Context) -> Program[ReducedBatch]:
        """One message for all layers, encoded by one call and averaged by another."""
        compressor: BatchCompressor = self.compressor  # type: ignore[assignment]  # it declares BATCHES_LAYERS
        keys = ctx.keys(batch.names, ctx.world.rank)
        encoded = compressor.encode_many(batch, keys)
        if encoded.first_bad >= 0:
            ctx.nonfinite.append(batch.names[encoded.first_bad])
            encoded = compressor.encode_many(batch.zeros(), keys)
        own, parts = encoded.payload, encoded.payload.num_parts // len(batch.specs)
        labels = batch_labels(repeat_names(batch.names, parts), own)
        expected = sum([spec.num_bytes for spec in batch.specs])
        payloads: GatheredPayloads = yield AllGather(own, labels, expected_bytes=expected)

        def write_values(outs: Sequence[Tensor]) -> None:
            if not payloads.shared:
                compressor.decode_mean_many(payloads, batch.specs, _all_keys(batch.names, ctx), outs)
                return
            for out, mean in zip(
                outs, payloads.cached("means", lambda: self._means(payloads, batch, ctx)), strict=True
            ):
                out.copy_(mean)

        def layer(i: int) -> Reduced[Any]:
            counts = [parts] * len(batch.specs)
            of_layer = payloads.cached(("cut", *counts), lambda: cut_all(payloads, counts))[i]
            return self._reduced(own.cut(counts)[i], of_layer, batch.specs[i], batch.states[i], ctx)

        out = ReducedBatch(list(batch.states), encoded.residuals, write_values, layer, encoded.estimates)
        if not (codes_positions(compressor) and has(compressor.values, Capability.LOSSLESS)):
            return out
        bounds = [compressor.bounds(spec.numel) for spec in batch.specs]
        return out._replace(add_values=lambda bases, outs: add_sparse_many(bases, payloads, bounds, outs))

    def _means(self, payloads: GatheredPayloads, batch: LayerBatch, ctx: Context) -> list[Tensor]:
        """The averages of a batch, computed once for all ranks of a simulated world."""
        means = [torch.empty_like(tensor) for tensor in batch.tensors]
        self.compressor.decode_mean_many(payloads, batch.specs, _all_keys(batch.names, ctx), means)  # type: ignore[attr-defined]
        return means

    def reduce_with_residual(
        self, tensor: Tensor, residual: Tensor, spec: TensorSpec, state: tuple[()], ctx: Context
    ) -> Program[tuple[Reduced[tuple[()]], Tensor]]:
        if encodes_with_residual(self.compressor):
            key = ctx.key(spec.name, ctx.world.rank)
            payload, new_residual = self.compressor.encode_with_residual(tensor, residual, key)
            return (yield from self._gather(payload, spec, state, ctx)), new_residual
        return (yield from reduce_and_subtract(self, tensor, residual, spec, state, ctx))

    def expected_bytes(self, spec: TensorSpec, size: int) -> float:
        return (size - 1) * self.compressor.num_bytes(spec)

    def send_form(self) -> SendForm:
        return SendForm.single(self.compressor)

    def estimate_errors(
        self, tensor: Tensor, spec: TensorSpec, options: Sequence[Any], key: Key, exact: bool
    ) -> Sequence[float | None] | Tensor:
        return estimate_compressor_errors(self, tensor, spec, options, key, exact)

    def _gather(self, own: Payload, spec: TensorSpec, state: tuple[()], ctx: Context) -> Program[Reduced[tuple[()]]]:
        payloads: GatheredPayloads = yield AllGather(own, payload_labels(spec.name, own), expected_bytes=spec.num_bytes)
        return self._reduced(own, payloads, spec, state, ctx)

    def _reduced(
        self, own: Payload, payloads: GatheredPayloads, spec: TensorSpec, state: tuple[()], ctx: Context
    ) -> Reduced[tuple[()]]:
        """The result of one layer, decoded when it is asked for."""
        decoded: list[Tensor] = []  # not functools.cache, which costs more to make than most payloads to decode

        def sent() -> Tensor:
            if not decoded:
                decoded.append(self._decode(own, spec, ctx, ctx.world.rank))
            return decoded[0]

        def mean(out: Tensor | None) -> Tensor:
            return payloads.cached_copy("mean", lambda buffer: self._mean(payloads, sent, spec, ctx, buffer), out)

        return Reduced(mean, sent, state)

    def _mean(
        self, payloads: GatheredPayloads, sent: Callable[[], Tensor], spec: TensorSpec, ctx: Context, out: Tensor | None
    ) -> Tensor:
        """The average in rank order, so that all ranks get the same bits; the own payload is decoded once at most."""
        rank, size = ctx.world
        if spec.dtype == torch.float32 and decodes_mean(self.compressor):
            keys = [ctx.key(spec.name, r) for r in range(size)]
            return self.compressor.decode_mean([payload.to(spec.device) for payload in payloads], spec, keys, out)
        total = torch.zeros(spec.shape, dtype=spec.work_dtype, device=spec.device)
        for r, payload in enumerate(payloads):
            # not add_(..., alpha=1 / size): some processors round that once and some twice
            total += (sent() if r == rank else self._decode(payload, spec, ctx, r)) * (1 / size)
        return total

    def _decode(self, payload: Payload, spec: TensorSpec, ctx: Context, rank: int) -> Tensor:
        decoded = self.compressor.decode(payload.to(spec.device), spec, ctx.key(spec.name, rank))
        return decoded.to(spec.work_dtype)


def _all_keys(names: Sequence[str], ctx: Context) -> list[Sequence[Key]]:
    """The keys of all layers, for each rank."""
    return [ctx.keys(names, rank) for rank in range(ctx.world.size)]
