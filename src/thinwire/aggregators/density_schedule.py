"""Density schedules, such as the warm-up of Deep Gradient Compression (Lin et al., 2018): sends what `inner` sends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from torch import Tensor

from ..core import (
    Aggregator,
    Capabilities,
    Capability,
    CompositionError,
    Context,
    IncompatibleParts,
    Key,
    MemoryItem,
    Program,
    Reduced,
    SendForm,
    TensorSpec,
    adopt_into,
    give_back_to,
    memory_items,
    merge_memories,
    needs_all_ranks_error,
    reduce_with_residual,
    target_of,
)
from .options import with_setting

SHAPES = ("linear", "cosine", "exponential", "dgc")
_DGC_STAGES = 5  # 0.25, 0.0625, 0.0156, 0.0039, 0.001: each stage keeps a quarter of the one before


@dataclass(frozen=True)
class DensitySchedule:
    """Change the density of `inner` from `start` to `end` over `steps` steps: DGC's warm-up, dynamic sparsification.

    The density depends on the step alone, so it is the same on all ranks.

    Args:
        inner: a composition with a density, such as topk(density=0.01).
        start: density at step 0.
        end: density from step `steps` on.
        steps: length of the schedule.
        shape: "linear", "cosine", "exponential", or "dgc", which is exponential in five stages.
    """

    capabilities: ClassVar[Capabilities] = frozenset({Capability.FUSES_RESIDUAL, Capability.ACCEPTS_MOMENT_PAIRS})

    inner: Aggregator[Any]
    start: float = 0.25
    end: float = 0.001
    steps: int = 1000
    shape: str = "exponential"

    def __post_init__(self) -> None:
        for name, value in (("start", self.start), ("end", self.end)):
            if not 0 < value <= 1:
                raise CompositionError(f"DensitySchedule: {name} must be in (0, 1], got {value}; 0.01 is common")
        if self.steps < 1:
            raise CompositionError(f"DensitySchedule: steps must be at least 1, got {self.steps}; 1000 is the default")
        if self.shape not in SHAPES:
            raise CompositionError(f"DensitySchedule: shape must be one of {', '.join(SHAPES)}, got {self.shape!r}")
        if with_setting(self.inner, "density", self.end) is None:
            name = type(self.inner).__name__
            raise IncompatibleParts(
                f"DensitySchedule changes a density; {name} has none. Use scheduled(topk(density=0.01), ...)"
            )

    def density(self, step: int) -> float:
        """The density at this step."""
        return density_at(min(1.0, step / self.steps), self.start, self.end, self.shape)

    def init(self, spec: TensorSpec, key: Key) -> Any:
        return self.inner.init(spec, key)

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: Any, ctx: Context) -> Program[Reduced[Any]]:
        return (yield from self._at_step(ctx).reduce(tensor, spec, state, ctx))

    def reduce_with_residual(
        self, tensor: Tensor, residual: Tensor, spec: TensorSpec, state: Any, ctx: Context
    ) -> Program[tuple[Reduced[Any], Tensor]]:
        return (yield from reduce_with_residual(self._at_step(ctx), tensor, residual, spec, state, ctx))

    def target(self, tensor: Tensor, spec: TensorSpec, state: Any, ctx: Context) -> Tensor:
        return target_of(self.inner, tensor, spec, state, ctx)

    def hand_over(self, state: Any, spec: TensorSpec) -> list[MemoryItem]:
        return memory_items(self.inner, state, spec)

    def adopt(
        self, state: Any, spec: TensorSpec, items: Sequence[MemoryItem], ctx: Context
    ) -> tuple[Any, list[MemoryItem]]:
        return adopt_into(self.inner, state, spec, items, ctx)

    def merge(self, states: Sequence[Any], spec: TensorSpec) -> Any:
        return merge_memories(self.inner, states, spec)

    def give_back(self, tensor: Tensor, spec: TensorSpec, state: Any, ctx: Context) -> Any:
        return give_back_to(self.inner, tensor, spec, state, ctx)

    def send_form(self) -> SendForm:
        raise needs_all_ranks_error(self)  # a server's decoder has one density

    def _at_step(self, ctx: Context) -> Aggregator[Any]:
        return cast("Aggregator[Any]", with_setting(self.inner, "density", self.density(ctx.step)))


def density_at(progress: float, start: float, end: float, shape: str) -> float:
    """The density when the fraction `progress` of the schedule is done, 0 to 1."""
    if shape == "dgc":
        progress, shape = min(1.0, math.floor(progress * _DGC_STAGES) / (_DGC_STAGES - 1)), "exponential"
    if shape == "exponential":
        return math.exp(math.log(start) + progress * (math.log(end) - math.log(start)))
    if shape == "cosine":
        progress = (1 - math.cos(math.pi * progress)) / 2
    return start + progress * (end - start)
