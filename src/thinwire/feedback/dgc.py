"""Momentum before compression: what waits in the residual waits with its velocity."""

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
    Held,
    Key,
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
from .residuals import ResidualMemory


class DGCState(NamedTuple):
    velocity: Tensor
    residual: Tensor
    inner: Any


_ALWAYS = frozenset({Capability.CORRECTS_ERROR, Capability.KEEPS_RESIDUAL})


@dataclass(frozen=True)
class DGC(ResidualMemory):
    """Add up momentum on each worker and send that, keep what was not sent; the optimizer must then have no momentum.

    u <- momentum·u + g; v <- v + u; send C(v); v <- v - sent. masking forgets u where something was sent, lest old
    velocity carry a coordinate on; made for sparse inner parts, since a dense one would forget all of u at every step.
    clip bounds each layer's g to the norm clip / sqrt(ranks) first. Deep Gradient Compression, arXiv 1712.01887.
    """

    inner: Aggregator[Any]
    momentum: float = 0.9
    masking: bool = True
    clip: float | None = None

    residual = "fp32"  # its form; no setting

    def __post_init__(self) -> None:
        check_inner("DGC", self.inner, sends_differences=True)
        if not 0 <= self.momentum < 1:
            raise CompositionError(f"DGC: momentum must be in [0, 1), got {self.momentum}; 0.9 is usual")
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise CompositionError(f"DGC: clip must be positive and finite, got {self.clip}; none does not clip")

    @cached_property
    def capabilities(self) -> Capabilities:
        forgets = self.masking and self.clip is None  # where all is sent, nothing of the velocity stays
        return _ALWAYS | {Capability.LOSSLESS} if forgets else _ALWAYS

    def init(self, spec: TensorSpec, key: Key) -> DGCState:
        zeros = torch.zeros(spec.shape, dtype=spec.work_dtype, device=spec.device)
        return DGCState(zeros, zeros, self.inner.init(spec, key))

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: DGCState, ctx: Context) -> Program[Reduced[DGCState]]:
        velocity = self._velocity(tensor, spec, state, ctx)
        target = saturate(state.residual + velocity)
        out = yield from self.inner.reduce(cast_saturating(target, spec.dtype), spec, state.inner, ctx)
        if self.masking:
            velocity = velocity.masked_fill(out.sent != 0, 0)
        return Reduced(out.value, out.sent, DGCState(velocity, saturate(target - out.sent), out.state))

    def _velocity(self, tensor: Tensor, spec: TensorSpec, state: DGCState, ctx: Context) -> Tensor:
        fresh = tensor.to(spec.work_dtype)
        if self.clip is not None:
            fresh = clipped(fresh, self.clip / math.sqrt(ctx.world.size))
        return saturate(self.momentum * state.velocity + fresh)

    def target(self, tensor: Tensor, spec: TensorSpec, state: DGCState, ctx: Context) -> Tensor:
        velocity = self._velocity(cast_saturating(tensor, spec.dtype), spec, state, ctx)
        return target_of(self.inner, saturate(state.residual + velocity), spec, state.inner, ctx)

    def hand_over(self, state: DGCState, spec: TensorSpec) -> list[Held]:
        unsent, *inside = super().hand_over(state, spec)
        lost = "momentum that was gathered is forgotten; give the optimizer a momentum of its own"
        return [unsent, Held("velocity", self, state.velocity, lost), *inside]

    def adopt(
        self, state: DGCState, spec: TensorSpec, held: Sequence[Held], ctx: Context
    ) -> tuple[DGCState, list[Held]]:
        """All velocities of `held` are added to its own, too."""
        velocities, rest = split_kind(held, "velocity")
        velocity = state.velocity
        for one in velocities:
            velocity = saturate(velocity + one.value)
        return super().adopt(state._replace(velocity=velocity), spec, rest, ctx)


def clipped(tensor: Tensor, norm: float) -> Tensor:
    """The tensor, scaled down to this Euclidean norm if it is longer."""
    if tensor.numel() == 0:
        return tensor
    wide = tensor.double()
    peak = wide.abs().amax().clamp(min=torch.finfo(torch.float64).tiny)
    length = tree_sum((wide / peak).flatten().square()).sqrt()  # of a tensor scaled to 1, so no square overflows
    return (wide * (norm / peak / length).clamp(max=1.0)).to(tensor.dtype)
