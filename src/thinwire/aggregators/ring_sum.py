"""The exact average round a ring, hop by hop."""

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
class RingSum:
    """Average the tensors as they are, passing pieces to the next rank only: 2(n − 1) messages of d/n. Exact.

    n − 1 hops add up: what a rank gets it adds to its own and passes on. n − 1 more carry each finished piece round, so
    that all ranks end with the same bits. `dense()` sends the same bytes by whatever way the backend has.
    """

    capabilities: ClassVar[Capabilities] = frozenset({Capability.LOSSLESS})

    def init(self, spec: TensorSpec, key: Key) -> tuple[()]:
        return ()

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: tuple[()], ctx: Context) -> Program[Reduced[tuple[()]]]:
        rank, size = ctx.world
        share = (tensor / size).flatten()  # divided first, so that only what rounding adds can overflow a sum
        pieces = list(torch.split(share, shard_sizes(spec.numel, size)))
        for hop in range(2 * (size - 1)):
            leaving, coming = (rank - hop) % size, (rank - hop - 1) % size
            received = yield from _pass_on(pieces[leaving], pieces[coming], spec, ctx)
            pieces[coming] = saturate(pieces[coming] + received) if hop < size - 1 else received
        return Reduced(torch.cat(pieces).view(spec.shape), tensor, state)


def _pass_on(mine: Tensor, form: Tensor, spec: TensorSpec, ctx: Context) -> Program[Tensor]:
    """A piece to the next rank, and one from the rank before, as long as `form`."""
    rank, size = ctx.world
    payload = Payload((mine,))
    answers: GatheredPayloads = yield NeighborExchange(
        outgoing=(((rank + 1) % size, payload),),
        sources=((rank - 1) % size,),
        group="a ring, one way",
        labels=payload_labels(spec.name, payload),
    )
    (received,) = expect_parts(answers[0], 1, "RingSum")
    return expect_vector(received, form.dtype, form.numel(), "RingSum").to(form.device)
