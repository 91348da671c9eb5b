"""Everybody hears a few."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
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
    Neighbors,
    Payload,
    Program,
    Reduced,
    TensorSpec,
    Topology,
    encodes_with_residual,
    neighbors_of,
    reduce_and_subtract,
    saturate,
)
from .partners import decoded, swap_with

OWN = ("decoded", "exact")


@dataclass(frozen=True)
class Gossip:
    """Mix with the partners a topology names, Σ K_ij C(x_j): one payload to each, ranks end with differing values.

    Over all ranks the mean of values is the mean of what was sent, because the columns of K sum to one. A rank's own
    term is decoded like the others'; own="exact" takes its tensor as it is, so that only what partners hear is lossy.
    A partner whose tensor is bad is left out: its weight falls to the rank's own, which keeps the others' mean where K
    is symmetric.
    """

    capabilities: ClassVar[Capabilities] = frozenset(
        {Capability.LOSSLESS, Capability.WRAPS_COMPRESSOR, Capability.FUSES_RESIDUAL}
    )

    compressor: Compressor
    topology: Topology
    own: str = "decoded"

    def __post_init__(self) -> None:
        if self.own not in OWN:
            raise CompositionError(f"Gossip: own must be one of {', '.join(OWN)}, got {self.own!r}")

    def init(self, spec: TensorSpec, key: Key) -> tuple[()]:
        return ()

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: tuple[()], ctx: Context) -> Program[Reduced[tuple[()]]]:
        mine = self.compressor.encode(tensor, ctx.key(spec.name, ctx.world.rank))
        return (yield from self._mix(tensor, mine, spec, state, ctx))

    def reduce_with_residual(
        self, tensor: Tensor, residual: Tensor, spec: TensorSpec, state: tuple[()], ctx: Context
    ) -> Program[tuple[Reduced[tuple[()]], Tensor]]:
        if encodes_with_residual(self.compressor) and self.own == "decoded":
            mine, rest = self.compressor.encode_with_residual(tensor, residual, ctx.key(spec.name, ctx.world.rank))
            return (yield from self._mix(tensor, mine, spec, state, ctx)), rest
        return (yield from reduce_and_subtract(self, tensor, residual, spec, state, ctx))

    def _mix(
        self, tensor: Tensor, mine: Payload, spec: TensorSpec, state: tuple[()], ctx: Context
    ) -> Program[Reduced[tuple[()]]]:
        rank = ctx.world.rank
        near = neighbors_of(self.topology, ctx.world, ctx.step)
        answers: GatheredPayloads = yield swap_with(near, mine, self.topology, spec)
        heard, near = dict(zip(near.incoming, answers, strict=True)), without(near, answers.missing)
        ours = cache(lambda: decoded(self.compressor, mine, spec, ctx, rank))
        own = ours() if self.own == "decoded" else tensor.to(spec.work_dtype)
        value = torch.zeros(spec.shape, dtype=spec.work_dtype, device=spec.device)
        for r in sorted((rank, *near.incoming)):  # in rank order: a complete graph gives the bits of a gather
            if r == rank:
                value += own * near.self_weight
            else:
                value += decoded(self.compressor, heard[r], spec, ctx, r) * near.incoming[r]

        def sent() -> Tensor:
            """Of a rank's tensor its own weight counts as it is, the rest as the others decoded it."""
            return ours() if self.own == "decoded" else saturate(ours() + (own - ours()) * near.self_weight)

        return Reduced(saturate(value), sent, state)


def without(near: Neighbors, missing: frozenset[int]) -> Neighbors:
    """The same place in the graph if these ranks were not heard: their weight falls to the rank's own."""
    kept = {source: weight for source, weight in near.incoming.items() if source not in missing}
    lost = sum(weight for source, weight in near.incoming.items() if source in missing)
    return near._replace(self_weight=near.self_weight + lost, incoming=kept)
