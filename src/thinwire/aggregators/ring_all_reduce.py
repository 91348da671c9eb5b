"""Ring all-reduce (Patarasuk & Yuan, 2009): the exact average by reduce-scatter and all-gather around a ring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import (
    Capabilities,
    Capability,
    Context,
    GatheredPayloads,
    Key,
    NeighborExchange,
    Payload,
    Program,
    Reduced,
    TensorSpec,
    payload_labels,
    saturate,
    shard_sizes,
)
from ..wire import expect_parts, expect_vector


@dataclass(frozen=True)
class RingAllReduce:
    """Average uncompressed tensors, sending to the next rank only: 2(n − 1) messages of d/n values. Exact.

    n − 1 hops add: a rank adds its own shard to the one it receives and sends the sum on. n − 1 more hops carry each
    finished shard around, so that all ranks end with the same bits. `dense()` sends the same bytes by the backend's own
    algorithm.
    """

    capabilities: ClassVar[Capabilities] = frozenset({Capability.LOSSLESS})

    def init(self, spec: TensorSpec, key: Key) -> tuple[()]:
        return ()

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: tuple[()], ctx: Context) -> Program[Reduced[tuple[()]]]:
        rank, size = ctx.world
        share = (tensor / size).flatten()  # divided first, so that only rounding can make a sum overflow
        shards = list(torch.split(share, shard_sizes(spec.numel, size)))
        for hop in range(2 * (size - 1)):
            outgoing, incoming = (rank - hop) % size, (rank - hop - 1) % size
            received = yield from _send_to_next(shards[outgoing], shards[incoming], spec, ctx)
            shards[incoming] = saturate(shards[incoming] + received) if hop < size - 1 else received
        return Reduced(torch.cat(shards).view(spec.shape), tensor, state)


def _send_to_next(shard: Tensor, expected: Tensor, spec: TensorSpec, ctx: Context) -> Program[Tensor]:
    """Send a shard to the next rank; return the one from the rank before, which has the size of `expected`."""
    rank, size = ctx.world
    payload = Payload((shard,))
    answers: GatheredPayloads = yield NeighborExchange(
        outgoing=(((rank + 1) % size, payload),),
        sources=((rank - 1) % size,),
        group="a ring, one way",
        labels=payload_labels(spec.name, payload),
    )
    (received,) = expect_parts(answers[0], 1, "RingAllReduce")
    return expect_vector(received, expected.dtype, expected.numel(), "RingAllReduce").to(expected.device)
