"""CHOCO-Gossip (Koloskova et al., 2019): send C(x_i − h_i) to neighbors, which keep h_i; mix the estimates h."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ..core import (
    Capabilities,
    Capability,
    CompositionError,
    Compressor,
    Context,
    GatheredPayloads,
    IncompatibleParts,
    Key,
    PrivateState,
    Program,
    Reduced,
    TensorSpec,
    Topology,
    cast_saturating,
    neighbors_of,
    saturate,
)
from .neighbors import decode_from, make_exchange


class ChocoState(NamedTuple):
    """Estimates of this rank's and its neighbors' tensors."""

    own_estimate: Tensor  # h_i: what the neighbors know of this rank's tensor
    mixed_estimate: Tensor  # Σ_j K_ij h_j over this rank and its neighbors


@dataclass(frozen=True)
class Choco(PrivateState):
    """Gossip of whole weights: send C(x_i − h_i), then x_i ← x_i + gamma Σ_j K_ij (h_j − h_i). Fixed topologies only.

    h_i ← h_i + C(x_i − h_i) on rank i and on all ranks that receive from it. The estimates h converge to tensors that
    do not change, so nothing is lost, however few bits are sent; the mean over ranks does not move. CHOCO-SGD,
    arXiv 1902.00340.

    Args:
        compressor: C, with a contract delta > 0.
        topology: neighbors and weights K, the same at every step.
        gamma: step size of the mixing, in (0, 1]; stable while it is small against the compressor's delta.
    """

    capabilities: ClassVar[Capabilities] = frozenset(
        {Capability.WRAPS_COMPRESSOR, Capability.TRACKS_PEER_COPIES, Capability.CORRECTS_ERROR}
    )

    compressor: Compressor
    topology: Topology
    gamma: float = 0.2

    def __post_init__(self) -> None:
        if not 0 < self.gamma <= 1:
            raise CompositionError(f"Choco: gamma must be in (0, 1], got {self.gamma}; 0.2 is a safe start")
        if self.topology.changes:
            name = type(self.topology).__name__
            raise IncompatibleParts(
                f"Choco keeps an estimate of each neighbor's tensor; {name} changes neighbors from step to step. "
                "Use a fixed topology such as ring(), or gossip(...) of the change since the last round"
            )

    def init(self, spec: TensorSpec, key: Key) -> ChocoState:
        zeros = torch.zeros(spec.shape, dtype=spec.work_dtype, device=spec.device)
        return ChocoState(zeros, zeros)

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: ChocoState, ctx: Context) -> Program[Reduced[ChocoState]]:
        rank, wide = ctx.world.rank, tensor.to(spec.work_dtype)
        neighbors = neighbors_of(self.topology, ctx.world, ctx.step)
        difference = cast_saturating(saturate(wide - state.own_estimate), spec.dtype)
        payload = self.compressor.encode(difference, ctx.key(spec.name, rank))
        answers: GatheredPayloads = yield make_exchange(neighbors, payload, self.topology, spec)
        mixed = state.mixed_estimate
        for source, received in zip(neighbors.incoming, answers, strict=True):
            if source not in answers.missing:  # an excluded neighbor keeps its h_j, so its share here stays as well
                change = decode_from(self.compressor, received, spec, ctx, source)
                mixed = saturate(mixed + change * neighbors.incoming[source])
        if_excluded = ChocoState(state.own_estimate, mixed)
        own_change = decode_from(self.compressor, payload, spec, ctx, rank)
        new = ChocoState(
            saturate(state.own_estimate + own_change), saturate(mixed + own_change * neighbors.self_weight)
        )
        value = saturate(wide + (new.mixed_estimate - new.own_estimate) * self.gamma)
        return Reduced(value, wide, new, if_excluded)

    def target(self, tensor: Tensor, spec: TensorSpec, state: ChocoState, ctx: Context) -> Tensor:
        """What the compressor receives: x_i − h_i."""
        return saturate(tensor.to(spec.work_dtype) - state.own_estimate)
