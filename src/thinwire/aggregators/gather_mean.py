"""Everybody gets everybody's payload."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import AllGather, Compressor, Context, Gathered, Key, Payload, Program, Reduced, TensorSpec, payload_labels


@dataclass(frozen=True)
class GatherMean:
    """Gather all payloads, decode them and average: any compressor; traffic grows with the number of ranks."""

    compressor: Compressor

    def init(self, spec: TensorSpec, key: Key) -> tuple[()]:
        return ()

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: tuple[()], ctx: Context) -> Program[Reduced[tuple[()]]]:
        rank, size = ctx.world
        mine = self.compressor.encode(tensor, ctx.key(spec.name, rank))
        payloads: Gathered = yield AllGather(mine, payload_labels(spec.name, mine))
        sent = self._decode(mine, spec, ctx, rank)
        value = payloads.once("mean", lambda: self._mean(payloads, sent, spec, ctx))
        return Reduced(value.clone() if size > 1 else value, sent, state)

    def _mean(self, payloads: Gathered, sent: Tensor, spec: TensorSpec, ctx: Context) -> Tensor:
        """In rank order, so that every rank gets the same bits; what is known already is not decoded again."""
        rank, size = ctx.world
        total = torch.zeros(spec.shape, dtype=spec.work_dtype, device=spec.device)
        for r, payload in enumerate(payloads):
            # not add_(..., alpha=1 / size): some processors round that once and some twice
            total += (sent if r == rank else self._decode(payload, spec, ctx, r)) * (1 / size)
        return total

    def _decode(self, payload: Payload, spec: TensorSpec, ctx: Context, rank: int) -> Tensor:
        decoded = self.compressor.decode(payload.to(spec.device), spec, ctx.key(spec.name, rank))
        return decoded.to(spec.work_dtype)
