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
    Capabilities,
    Capability,
    Compressor,
    Context,
    GatheredPayloads,
    Key,
    Payload,
    Program,
    Reduced,
    SendForm,
    TensorSpec,
    decodes_mean,
    encodes_with_residual,
    estimate_compressor_errors,
    inherit_capabilities,
    payload_labels,
    reduce_and_subtract,
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
        return _ALWAYS | inherit_capabilities(self.compressor, Capability.ESTIMATES_ERRORS, Capability.EXPECTS_BYTES)

    def init(self, spec: TensorSpec, key: Key) -> tuple[()]:
        return ()

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: tuple[()], ctx: Context) -> Program[Reduced[tuple[()]]]:
        payload = self.compressor.encode(tensor, ctx.key(spec.name, ctx.world.rank))
        return (yield from self._gather(payload, spec, state, ctx))

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
    ) -> Sequence[float | None]:
        return estimate_compressor_errors(self, tensor, spec, options, key, exact)

    def _gather(self, own: Payload, spec: TensorSpec, state: tuple[()], ctx: Context) -> Program[Reduced[tuple[()]]]:
        payloads: GatheredPayloads = yield AllGather(own, payload_labels(spec.name, own), expected_bytes=spec.num_bytes)
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
