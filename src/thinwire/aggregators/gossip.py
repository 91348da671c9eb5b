"""Gossip averaging (D-PSGD, Lian et al., 2017): x_i ← Σ_j K_ij C(x_j), one payload to each neighbor."""

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
from .neighbors import decode_from, make_exchange

SELF_TERMS = ("decoded", "exact")


@dataclass(frozen=True)
class Gossip:
    """Mix each rank's tensor with its neighbors': x_i ← Σ_j K_ij C(x_j), one payload per neighbor. Ranks end different.

    K is the topology's doubly stochastic matrix, so the mean of `value` over ranks is the mean of `sent`. A neighbor
    with a non-finite tensor is left out: its weight is added to the rank's own, which keeps the mean of the others
    where K is symmetric.

    Args:
        compressor: C, encodes what neighbors receive.
        topology: the neighbors and the weights K.
        self_term: the rank's own term: "decoded" is C(x_i), like the others'; "exact" is x_i.
    """

    capabilities: ClassVar[Capabilities] = frozenset(
        {Capability.LOSSLESS, Capability.WRAPS_COMPRESSOR, Capability.FUSES_RESIDUAL}
    )

    compressor: Compressor
    topology: Topology
    self_term: str = "decoded"

    def __post_init__(self) -> None:
        if self.self_term not in SELF_TERMS:
            raise CompositionError(
                f"Gossip: self_term must be one of {', '.join(SELF_TERMS)}, got {self.self_term!r}; decoded is usual"
            )

    def init(self, spec: TensorSpec, key: Key) -> tuple[()]:
        return ()

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: tuple[()], ctx: Context) -> Program[Reduced[tuple[()]]]:
        payload = self.compressor.encode(tensor, ctx.key(spec.name, ctx.world.rank))
        return (yield from self._mix(tensor, payload, spec, state, ctx))

    def reduce_with_residual(
        self, tensor: Tensor, residual: Tensor, spec: TensorSpec, state: tuple[()], ctx: Context
    ) -> Program[tuple[Reduced[tuple[()]], Tensor]]:
        if encodes_with_residual(self.compressor) and self.self_term == "decoded":
            key = ctx.key(spec.name, ctx.world.rank)
            payload, new_residual = self.compressor.encode_with_residual(tensor, residual, key)
            return (yield from self._mix(tensor, payload, spec, state, ctx)), new_residual
        return (yield from reduce_and_subtract(self, tensor, residual, spec, state, ctx))

    def _mix(
        self, tensor: Tensor, payload: Payload, spec: TensorSpec, state: tuple[()], ctx: Context
    ) -> Program[Reduced[tuple[()]]]:
        rank = ctx.world.rank
        neighbors = neighbors_of(self.topology, ctx.world, ctx.step)
        answers: GatheredPayloads = yield make_exchange(neighbors, payload, self.topology, spec)
        received = dict(zip(neighbors.incoming, answers, strict=True))
        neighbors = drop_missing(neighbors, answers.missing)
        own_decoded = cache(lambda: decode_from(self.compressor, payload, spec, ctx, rank))
        own_term = own_decoded() if self.self_term == "decoded" else tensor.to(spec.work_dtype)
        value = torch.zeros(spec.shape, dtype=spec.work_dtype, device=spec.device)
        for r in sorted((rank, *neighbors.incoming)):  # in rank order: a complete graph gives the bits of a gather
            if r == rank:
                value += own_term * neighbors.self_weight
            else:
                value += decode_from(self.compressor, received[r], spec, ctx, r) * neighbors.incoming[r]

        def sent() -> Tensor:
            """With an exact self term, K_ii of the tensor counts as it is and 1 − K_ii as the neighbors decoded it."""
            if self.self_term == "decoded":
                return own_decoded()
            return saturate(own_decoded() + (own_term - own_decoded()) * neighbors.self_weight)

        return Reduced(saturate(value), sent, state)


def drop_missing(neighbors: Neighbors, missing: frozenset[int]) -> Neighbors:
    """The same weights without these sources: their weight is added to the rank's own."""
    present = {source: weight for source, weight in neighbors.incoming.items() if source not in missing}
    lost = sum(weight for source, weight in neighbors.incoming.items() if source in missing)
    return neighbors._replace(self_weight=neighbors.self_weight + lost, incoming=present)
