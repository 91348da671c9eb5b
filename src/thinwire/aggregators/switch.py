"""One of several aggregators, as the plan says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from ..core import (
    Aggregator,
    CompositionError,
    Context,
    Key,
    Program,
    ProtocolError,
    Reduced,
    TensorSpec,
    reduce_with_residual,
)


class SwitchState(NamedTuple):
    entries: tuple[Any, ...]  # every entry's memory, so that a plan may come back to it


@dataclass(frozen=True)
class Switch:
    """Delegate each layer to the menu entry a controller chose; memories outside it survive a change of plan."""

    menu: tuple[Aggregator[Any], ...]

    carries_all = True  # its entries may not

    def __post_init__(self) -> None:
        if not self.menu:
            raise CompositionError("Switch: the menu is empty; give at least one aggregator")

    def init(self, spec: TensorSpec, key: Key) -> SwitchState:
        return SwitchState(tuple(entry.init(spec, key) for entry in self.menu))

    def reduce(
        self, tensor: Tensor, spec: TensorSpec, state: SwitchState, ctx: Context
    ) -> Program[Reduced[SwitchState]]:
        at = self._entry(spec, ctx)
        out = yield from self.menu[at].reduce(tensor, spec, state.entries[at], ctx)
        return _outside(out, state, at)

    def reduce_with_residual(
        self, tensor: Tensor, residual: Tensor, spec: TensorSpec, state: SwitchState, ctx: Context
    ) -> Program[tuple[Reduced[SwitchState], Tensor]]:
        at = self._entry(spec, ctx)
        out, rest = yield from reduce_with_residual(self.menu[at], tensor, residual, spec, state.entries[at], ctx)
        return _outside(out, state, at), rest

    def _entry(self, spec: TensorSpec, ctx: Context) -> int:
        at = ctx.plan[spec.name]
        if not 0 <= at < len(self.menu):
            raise ProtocolError(
                f"step {ctx.step}: the plan gives {spec.name} entry {at}, the menu has {len(self.menu)}"
            )
        return at


def _outside(out: Reduced[Any], state: SwitchState, at: int) -> Reduced[SwitchState]:
    """What an entry gave back, with the memories of all."""

    def among(new: Any) -> SwitchState:
        return SwitchState((*state.entries[:at], new, *state.entries[at + 1 :]))

    return out.with_state(among(out.state), None if out.heard is None else among(out.heard))
