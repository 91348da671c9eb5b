"""Everybody gets everybody's payload."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import AllGather, Compressor, Context, Key, Program, Reduced, TensorSpec, payload_labels


@dataclass(frozen=True)
class GatherMean:
    """Gather all payloads, decode them and average: any compressor; traffic grows with the number of ranks."""

    compressor: Compressor

    def init(self, spec: TensorSpec, key: Key) -> tuple[()]:
        return ()

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: tuple[()], ctx: Context) -> Program[Reduced[tuple[()]]]:
        keys = [ctx.key(spec.name, rank) for rank in range(ctx.world.size)]
        mine = self.compressor.encode(tensor, keys[ctx.world.rank])
        payloads = yield AllGather(mine, payload_labels(spec.name, mine))
        value = torch.zeros(spec.shape, dtype=spec.work_dtype, device=spec.device)
        sent = value
        for rank, (payload, key) in enumerate(zip(payloads, keys, strict=True)):
            decoded = self.compressor.decode(payload.to(spec.device), spec, key).to(spec.work_dtype)
            value.add_(decoded, alpha=1 / ctx.world.size)  # in rank order: the same bits on every rank
            if rank == ctx.world.rank:
                sent = decoded
        return Reduced(value, sent, state)
