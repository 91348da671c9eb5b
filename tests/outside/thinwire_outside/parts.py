"""A memory, a controller and a topology, registered by a decorator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

import thinwire
from thinwire.core import (
    Aggregator,
    Capabilities,
    Capability,
    Context,
    Key,
    LayerObservation,
    Plan,
    Program,
    Reduced,
    TensorSpec,
    World,
    check_inner,
    reduce_with_residual,
    saturate,
    target_of,
)
from thinwire.feedback import ResidualMemory


class KeeperState(NamedTuple):
    residual: Tensor
    inner: Any


@thinwire.register("keeper", kind="memory", examples=["topk(density=0.1)", "stride(step=4)"])
@dataclass(frozen=True)
class Keeper(ResidualMemory):
    """Error feedback: send C(g + e), keep e = g + e - C(g + e)."""

    capabilities: ClassVar[Capabilities] = frozenset({Capability.CORRECTS_ERROR, Capability.KEEPS_RESIDUAL})
    residual_dtype: ClassVar[str] = "fp32"

    inner: Aggregator[Any]

    def __post_init__(self) -> None:
        check_inner("Keeper", self.inner)

    def init(self, spec: TensorSpec, key: Key) -> KeeperState:
        zeros = torch.zeros(spec.shape, dtype=spec.work_dtype, device=spec.device)
        return KeeperState(zeros, self.inner.init(spec, key))

    def reduce(
        self, tensor: Tensor, spec: TensorSpec, state: KeeperState, ctx: Context
    ) -> Program[Reduced[KeeperState]]:
        out, rest = yield from reduce_with_residual(self.inner, tensor, state.residual, spec, state.inner, ctx)
        return out.with_state(KeeperState(rest, out.state))

    def target(self, tensor: Tensor, spec: TensorSpec, state: KeeperState, ctx: Context) -> Tensor:
        return target_of(self.inner, saturate(tensor + state.residual), spec, state.inner, ctx)


@thinwire.register("alternate", examples=["every=2"])
@dataclass(frozen=True)
class Alternate:
    """Give all layers the first two options of their menus in turn, each for `every` steps."""

    every: int = 10

    def init(self, layers: Sequence[TensorSpec]) -> tuple[Plan, tuple[()]]:
        return {spec.name: 0 for spec in layers}, ()

    def observe(self, spec: TensorSpec, observation: LayerObservation, state: tuple[()], ctx: Context) -> tuple[()]:
        return state

    def replan(self, plan: Plan, state: tuple[()], ctx: Context) -> Program[tuple[Plan, tuple[()]]]:
        yield from ()  # it asks for nothing: the step is common to all ranks
        return dict.fromkeys(plan, ctx.step // self.every % 2), state


@thinwire.register("pairs")
@dataclass(frozen=True)
class Pairs:
    """Average with the next rank at even steps, with the one before at odd steps."""

    changes = True

    def weights(self, world: World, step: int) -> dict[int, float]:
        rank, size = world
        other = rank + 1 if (rank + step) % 2 == 0 else rank - 1
        return {rank: 0.5, other: 0.5} if 0 <= other < size else {rank: 1.0}
