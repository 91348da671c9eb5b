"""Workers and servers: all send to who owns a piece, the owner answers all."""

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
from .pieces import Pieces, decoded_pieces, encode_pieces, leaving_labels, mean_of_pieces, second_key, share_of


@dataclass(frozen=True)
class Server:
    """Send payloads to rank 0, which averages and answers all: a worker sends one, the server takes n − 1 in and out.

    The answer is the average as it is, or encoded by `down`; what that loses, the server takes into its own `sent`.
    With `shards`, ranks 0, 1 ... own a piece each: the same result, the load shared. Servers are workers, too, so there
    are at most as many as ranks. A sparse operator chooses over the whole tensor.
    """

    capabilities: ClassVar[Capabilities] = frozenset({Capability.LOSSLESS, Capability.WRAPS_COMPRESSOR})

    compressor: Compressor
    down: Compressor | None = None
    shards: int = 1

    def __post_init__(self) -> None:
        if self.shards < 1:
            raise CompositionError(f"Server: shards must be at least 1, got {self.shards}; 1 is a single server")

    def init(self, spec: TensorSpec, key: Key) -> tuple[()]:
        return ()

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: tuple[()], ctx: Context) -> Program[Reduced[tuple[()]]]:
        rank, size = ctx.world
        owners = min(self.shards, size)
        cut, everybody = Pieces(spec, owners), [r for r in range(size) if r != rank]
        mine = encode_pieces(self.compressor, tensor, cut, ctx.key(spec.name, rank))
        boxes: GatheredPayloads = yield NeighborExchange(
            outgoing=tuple((to, payload) for to, payload in enumerate(mine) if to != rank),
            sources=tuple(everybody) if rank < owners else (),
            form=types_of(mine[0]),
            group=f"workers to servers ({owners})",
            expected_bytes=spec.num_bytes,
            labels=leaving_labels(spec.name, mine, rank) or payload_labels(spec.name, mine[0]),
        )
        mean, answer = None, None
        if rank < owners:
            mean = mean_of_pieces(self.compressor, with_own(boxes, mine[rank], rank), cut.specs[rank], ctx, rank)
            answer = self._encode(mean, cut.specs[rank], ctx, rank, owners)
        form = answer or self._form(cut.specs[0], ctx, owners)
        told: GatheredPayloads = yield NeighborExchange(
            outgoing=tuple((to, answer) for to in everybody) if answer is not None else (),
            sources=tuple(owner for owner in range(owners) if owner != rank),
            form=types_of(form),
            group=f"servers to workers ({owners})",
            expected_bytes=cut.specs[0].numel * spec.work_dtype.itemsize,
            labels=payload_labels(spec.name, form),
        )
        answers = told if answer is None else with_own(told, answer, rank)
        value = torch.cat([self._decode(a, cut.specs[o], ctx, o, owners) for o, a in enumerate(answers)])
        sent = decoded_pieces(self.compressor, mine, cut, ctx, rank)
        if mean is not None:
            at = cut.starts[rank]
            sent[at : at + mean.numel()] -= size * (mean - value[at : at + mean.numel()])
        return Reduced(value.view(spec.shape), saturate(sent).view(spec.shape), state)

    def _encode(self, mean: Tensor, spec: TensorSpec, ctx: Context, owner: int, owners: int) -> Payload:
        short = cast_saturating(mean, spec.dtype)
        if self.down is None:
            return Payload((short,))
        return share_of(self.down, owners).encode(short, second_key(ctx, spec.name, owner))

    def _form(self, spec: TensorSpec, ctx: Context, owners: int) -> Payload:
        """What an answer looks like, for who has none to send: the types of its parts follow from the operator."""
        nothing = torch.zeros(spec.shape, dtype=spec.dtype, device=spec.device)
        return self._encode(nothing, spec, ctx, 0, owners)

    def _decode(self, answer: Payload, spec: TensorSpec, ctx: Context, owner: int, owners: int) -> Tensor:
        if self.down is None:
            (plain,) = expect_parts(answer, 1, "Server")
            return expect_vector(plain, spec.dtype, spec.numel, "Server").to(spec.device, spec.work_dtype)
        key = second_key(ctx, spec.name, owner)
        return share_of(self.down, owners).decode(answer.to(spec.device), spec, key).to(spec.work_dtype)


def with_own(others: GatheredPayloads, own: Payload, rank: int) -> GatheredPayloads:
    """In the order of ranks: what the others sent, and this rank's own in its place."""
    return GatheredPayloads((*others[:rank], own, *others[rank:]))
