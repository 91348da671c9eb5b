"""Parameter server (Li et al., 2014): ranks send payloads to the owner of each shard, which returns the average."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import (
    Capabilities,
    Capability,
    CompositionError,
    Compressor,
    Context,
    GatheredPayloads,
    Key,
    NeighborExchange,
    Payload,
    Program,
    Reduced,
    TensorSpec,
    cast_saturating,
    payload_labels,
    saturate,
    types_of,
)
from ..wire import expect_parts, expect_vector
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
class ParameterServer:
    """Send payloads to rank 0, which averages and answers all: a worker sends one payload, the server n − 1 answers.

    The error of encoding the answer is subtracted from the server's own `sent`. A sparse compressor selects over the
    whole tensor.

    Args:
        compressor: encodes what workers send.
        downlink: encodes the answer; None sends the dense average.
        shards: number of servers: ranks 0, 1, ... own one shard each, which shares the load and gives the same result.
            Servers are ranks that also train, so more shards than ranks count as one per rank.
    """

    capabilities: ClassVar[Capabilities] = frozenset({Capability.LOSSLESS, Capability.WRAPS_COMPRESSOR})

    compressor: Compressor
    downlink: Compressor | None = None
    shards: int = 1

    def __post_init__(self) -> None:
        if self.shards < 1:
            raise CompositionError(
                f"ParameterServer: shards must be at least 1, got {self.shards}; 1 is a single server"
            )

    def init(self, spec: TensorSpec, key: Key) -> tuple[()]:
        return ()

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: tuple[()], ctx: Context) -> Program[Reduced[tuple[()]]]:
        rank, size = ctx.world
        owners = min(self.shards, size)
        layout, others = ShardLayout(spec, owners), [r for r in range(size) if r != rank]
        payloads = encode_shards(self.compressor, tensor, layout, ctx.key(spec.name, rank))
        received: GatheredPayloads = yield NeighborExchange(
            outgoing=tuple((owner, payload) for owner, payload in enumerate(payloads) if owner != rank),
            sources=tuple(others) if rank < owners else (),
            form=types_of(payloads[0]),
            group=f"workers to servers ({owners})",
            expected_bytes=spec.num_bytes,
            labels=outgoing_labels(spec.name, payloads, rank) or payload_labels(spec.name, payloads[0]),
        )
        mean, answer = None, None
        if rank < owners:
            owned = layout.specs[rank]
            mean = average_shard(self.compressor, insert_own(received, payloads[rank], rank), owned, ctx, rank)
            answer = self._encode_answer(mean, owned, ctx, rank, owners)
        example = answer or self._example_answer(layout.specs[0], ctx, owners)
        answers: GatheredPayloads = yield NeighborExchange(
            outgoing=tuple((to, answer) for to in others) if answer is not None else (),
            sources=tuple(owner for owner in range(owners) if owner != rank),
            form=types_of(example),
            group=f"servers to workers ({owners})",
            expected_bytes=layout.specs[0].numel * spec.work_dtype.itemsize,
            labels=payload_labels(spec.name, example),
        )
        if answer is not None:
            answers = insert_own(answers, answer, rank)
        value = torch.cat([self._decode_answer(a, layout.specs[o], ctx, o, owners) for o, a in enumerate(answers)])
        sent = decode_shards(self.compressor, payloads, layout, ctx, rank)
        if mean is not None:
            start = layout.starts[rank]
            sent[start : start + mean.numel()] -= size * (mean - value[start : start + mean.numel()])
        return Reduced(value.view(spec.shape), saturate(sent).view(spec.shape), state)

    def _encode_answer(self, mean: Tensor, spec: TensorSpec, ctx: Context, owner: int, owners: int) -> Payload:
        rounded = cast_saturating(mean, spec.dtype)
        if self.downlink is None:
            return Payload((rounded,))
        return compressor_for_shard(self.downlink, owners).encode(rounded, answer_key(ctx, spec.name, owner))

    def _example_answer(self, spec: TensorSpec, ctx: Context, owners: int) -> Payload:
        """An answer of zeros: ranks that send none learn from it which dtypes the parts of an answer have."""
        zeros = torch.zeros(spec.shape, dtype=spec.dtype, device=spec.device)
        return self._encode_answer(zeros, spec, ctx, 0, owners)

    def _decode_answer(self, answer: Payload, spec: TensorSpec, ctx: Context, owner: int, owners: int) -> Tensor:
        if self.downlink is None:
            (dense,) = expect_parts(answer, 1, "ParameterServer")
            return expect_vector(dense, spec.dtype, spec.numel, "ParameterServer").to(spec.device, spec.work_dtype)
        decoded = compressor_for_shard(self.downlink, owners).decode(
            answer.to(spec.device), spec, answer_key(ctx, spec.name, owner)
        )
        return decoded.to(spec.work_dtype)


def insert_own(others: GatheredPayloads, own: Payload, rank: int) -> GatheredPayloads:
    """Payloads of all ranks in rank order: those received from the others, and this rank's own at its index."""
    return GatheredPayloads((*others[:rank], own, *others[rank:]))
