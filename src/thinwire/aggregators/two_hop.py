"""Compressed two-hop all-reduce (1-bit Adam, Tang et al., 2021): shards to owners, encoded averages to all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import (
    AllGather,
    AllToAll,
    Capabilities,
    Capability,
    Compressor,
    Context,
    GatheredPayloads,
    IncompatibleParts,
    Key,
    Program,
    Reduced,
    TensorSpec,
    cast_saturating,
    is_additive,
    payload_labels,
    saturate,
)
from .shards import (
    ShardLayout,
    answer_key,
    average_shard,
    compressor_for_shard,
    decode_shards,
    encode_shards,
    outgoing_labels,
)


@dataclass(frozen=True)
class TwoHop:
    """Each rank averages one shard, encodes the average again and sends it to all: about 2 payloads per rank for any n.

    A sparse compressor selects over the whole tensor; an owner then keeps its share of what the compressor would keep.
    The error of the second encoding is subtracted from the owner's `sent`, so error feedback loses nothing.

    Args:
        compressor: encodes shards in both hops.
    """

    capabilities: ClassVar[Capabilities] = frozenset({Capability.LOSSLESS, Capability.WRAPS_COMPRESSOR})

    compressor: Compressor

    def __post_init__(self) -> None:
        if is_additive(self.compressor):
            name = type(self.compressor).__name__
            raise IncompatibleParts(
                f"TwoHop encodes twice; {name}'s payloads can be added by one all-reduce. Use SumMean({name}(...))"
            )

    def init(self, spec: TensorSpec, key: Key) -> tuple[()]:
        return ()

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: tuple[()], ctx: Context) -> Program[Reduced[tuple[()]]]:
        rank, size = ctx.world
        layout = ShardLayout(spec, size)
        payloads = encode_shards(self.compressor, tensor, layout, ctx.key(spec.name, rank))
        received: GatheredPayloads = yield AllToAll(
            payloads, outgoing_labels(spec.name, payloads, rank), expected_bytes=spec.num_bytes
        )
        owned = layout.specs[rank]
        mean = average_shard(self.compressor, received, owned, ctx, rank)
        second = compressor_for_shard(self.compressor, size)
        keys = [answer_key(ctx, spec.name, r) for r in range(size)]
        answer = second.encode(cast_saturating(mean, spec.dtype), keys[rank])
        answers: GatheredPayloads = yield AllGather(
            answer, payload_labels(spec.name, answer), expected_bytes=spec.num_bytes
        )

        def decode_answer(owner: int) -> Tensor:
            payload = answers[owner].to(spec.device)
            return second.decode(payload, layout.specs[owner], keys[owner]).to(spec.work_dtype)

        def decode_answers(out: Tensor | None) -> Tensor:
            flat = None
            if out is not None and out.is_contiguous() and out.dtype == spec.work_dtype:
                flat = out.view(-1)
            return torch.cat([decode_answer(r) for r in range(size)], out=flat)

        def compute_sent() -> Tensor:
            sent = decode_shards(self.compressor, payloads, layout, ctx, rank)
            shard = sent[layout.starts[rank] :][: owned.numel]
            shard -= size * (mean - decode_answer(rank))  # times n, because the mean over ranks divides by n
            return saturate(sent).view(spec.shape)

        def write_value(out: Tensor | None) -> Tensor:
            return answers.cached_copy("value", decode_answers, out).view(spec.shape)

        return Reduced(write_value, compute_sent, state)
