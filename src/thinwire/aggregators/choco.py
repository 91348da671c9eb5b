"""Whole weights through a lossy gossip: send how they differ from what partners believe."""

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
    OwnState,
    Program,
    Reduced,
    TensorSpec,
    Topology,
    cast_saturating,
    neighbors_of,
    saturate,
)
from .partners import decoded, swap_with


class ChocoState(NamedTuple):
    own: Tensor  # what partners believe this rank's tensor to be
    mixed: Tensor  # Σ K_ij of what this rank believes of all it hears, its own included


@dataclass(frozen=True)
class Choco(OwnState):
    """Send the compressed difference to what partners believe, move by gamma towards their mean. Fixed graphs only.

    b_i ← b_i + C(x_i − b_i) on i and on all who hear it; x_i ← x_i + gamma Σ K_ij (b_j − b_i). Beliefs reach tensors
    that rest, so that nothing is lost of them, however few bits are sent; the mean over ranks does not move. Stable
    while gamma is small against the contract's delta. CHOCO-SGD, arXiv 1902.00340.
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
                f"Choco remembers what its partners hold, {name} changes partners; "
                "use a fixed graph such as ring(), or gossip of what changed since the last round"
            )

    def init(self, spec: TensorSpec, key: Key) -> ChocoState:
        zeros = torch.zeros(spec.shape, dtype=spec.work_dtype, device=spec.device)
        return ChocoState(zeros, zeros)

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: ChocoState, ctx: Context) -> Program[Reduced[ChocoState]]:
        rank, wide = ctx.world.rank, tensor.to(spec.work_dtype)
        near = neighbors_of(self.topology, ctx.world, ctx.step)
        news = cast_saturating(saturate(wide - state.own), spec.dtype)
        mine = self.compressor.encode(news, ctx.key(spec.name, rank))
        answers: GatheredPayloads = yield swap_with(near, mine, self.topology, spec)
        mixed = state.mixed
        for source, payload in zip(near.incoming, answers, strict=True):
            if source not in answers.missing:  # who was bad keeps its belief of itself, so we keep ours of it
                theirs = decoded(self.compressor, payload, spec, ctx, source)
                mixed = saturate(mixed + theirs * near.incoming[source])
        state_if_excluded = ChocoState(state.own, mixed)
        ours = decoded(self.compressor, mine, spec, ctx, rank)
        after = ChocoState(saturate(state.own + ours), saturate(mixed + ours * near.self_weight))
        value = saturate(wide + (after.mixed - after.own) * self.gamma)
        return Reduced(value, wide, after, state_if_excluded)

    def target(self, tensor: Tensor, spec: TensorSpec, state: ChocoState, ctx: Context) -> Tensor:
        return saturate(tensor.to(spec.work_dtype) - state.own)
