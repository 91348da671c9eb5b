"""Deep Gradient Compression (Lin et al., 2018): momentum correction, factor masking, clipping; sends C(e + u)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import (
    Aggregator,
    Capabilities,
    Capability,
    CompositionError,
    Context,
    Key,
    MemoryItem,
    Program,
    Reduced,
    TensorSpec,
    cast_saturating,
    check_inner,
    saturate,
    split_kind,
    target_of,
)
from ..kernels import tree_sum
from .residuals import ResidualMemory, zero_state


class DGCState(NamedTuple):
    """Velocity u, residual e and the state of the inner aggregator."""

    velocity: Tensor
    residual: Tensor
    inner: Any


_ALWAYS = frozenset({Capability.CORRECTS_ERROR, Capability.KEEPS_RESIDUAL})


@dataclass(frozen=True)
class DGC(ResidualMemory):
    """Momentum on each worker before compression: u ← momentum·u + g, send C(e + u), keep e ← e + u − sent.

    The optimizer must then have no momentum of its own. arXiv 1712.01887.

    Args:
        inner: the aggregator that sends C(e + u), such as topk(density=0.001).
        momentum: factor of the velocity u, in [0, 1).
        masking: set u to zero where something was sent, so that stale velocity does not move a coordinate on. For
            sparse inner parts: a dense one would clear all of u at every step.
        clip: bound each layer's g to the norm clip / sqrt(ranks) first; None does not clip.
    """

    inner: Aggregator[Any]
    momentum: float = 0.9
    masking: bool = True
    clip: float | None = None

    residual_dtype = "fp32"  # no setting

    def __post_init__(self) -> None:
        check_inner("DGC", self.inner, sends_differences=True)
        if not 0 <= self.momentum < 1:
            raise CompositionError(f"DGC: momentum must be in [0, 1), got {self.momentum}; 0.9 is usual")
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise CompositionError(f"DGC: clip must be positive and finite, got {self.clip}; None disables clipping")

    @cached_property
    def capabilities(self) -> Capabilities:
        clears = self.masking and self.clip is None  # where all is sent, no velocity remains
        return _ALWAYS | {Capability.LOSSLESS} if clears else _ALWAYS

    def init(self, spec: TensorSpec, key: Key) -> DGCState:
        zeros = zero_state(spec)
        return DGCState(zeros, zeros, self.inner.init(spec, key))

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: DGCState, ctx: Context) -> Program[Reduced[DGCState]]:
        velocity = self._velocity(tensor, spec, state, ctx)
        target = saturate(state.residual + velocity)
        out = yield from self.inner.reduce(cast_saturating(target, spec.dtype), spec, state.inner, ctx)
        if self.masking:
            velocity = velocity.masked_fill(out.sent != 0, 0)
        return Reduced(out.value, out.sent, DGCState(velocity, saturate(target - out.sent), out.state))

    def _velocity(self, tensor: Tensor, spec: TensorSpec, state: DGCState, ctx: Context) -> Tensor:
        gradient = tensor.to(spec.work_dtype)
        if self.clip is not None:
            gradient = clip_norm(gradient, self.clip / math.sqrt(ctx.world.size))
        return saturate(self.momentum * state.velocity + gradient)

    def target(self, tensor: Tensor, spec: TensorSpec, state: DGCState, ctx: Context) -> Tensor:
        """What the compressor receives: e + u."""
        velocity = self._velocity(cast_saturating(tensor, spec.dtype), spec, state, ctx)
        return target_of(self.inner, saturate(state.residual + velocity), spec, state.inner, ctx)

    def hand_over(self, state: DGCState, spec: TensorSpec) -> list[MemoryItem]:
        """Residual and velocity, and what the memories inside hold."""
        unsent, *inside = super().hand_over(state, spec)
        lost = "accumulated momentum is lost; give the optimizer a momentum of its own"
        return [unsent, MemoryItem("velocity", self, state.velocity, lost), *inside]

    def adopt(
        self, state: DGCState, spec: TensorSpec, items: Sequence[MemoryItem], ctx: Context
    ) -> tuple[DGCState, list[MemoryItem]]:
        """Add all residuals and velocities of `items` to the own ones; return the new state and what was not used."""
        velocities, rest = split_kind(items, "velocity")
        velocity = state.velocity
        for item in velocities:
            velocity = saturate(velocity + item.value)
        return super().adopt(state._replace(velocity=velocity), spec, rest, ctx)


def clip_norm(tensor: Tensor, max_norm: float) -> Tensor:
    """The tensor, scaled down to this Euclidean norm if its norm is larger."""
    if tensor.numel() == 0:
        return tensor
    wide = tensor.double()
    peak = wide.abs().amax().clamp(min=torch.finfo(torch.float64).tiny)
    norm = tree_sum((wide / peak).flatten().square()).sqrt()  # of the tensor scaled to 1, so that no square overflows
    return (wide * (max_norm / peak / norm).clamp(max=1.0)).to(tensor.dtype)
