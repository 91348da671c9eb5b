"""One of several aggregators, as the plan says: out of a menu, or of one that is made by turning a knob."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from ..core import (
    Aggregator,
    Capabilities,
    Capability,
    CompositionError,
    Context,
    Controller,
    Held,
    Key,
    Menu,
    Program,
    ProtocolError,
    Reduced,
    SendForm,
    TensorSpec,
    adopt_into,
    flatten_state,
    give_back_to,
    held_by,
    merge_memories,
    needs_all_ranks,
    reduce_with_residual,
    target_of,
)
from .ladder import ladder


class SwitchState(NamedTuple):
    entries: tuple[Any, ...]  # every memory, so that a plan may come back to it


class Delegates:
    """What `switch` and `adapt` share: hand each layer to an entry of the menu, which has one of the memories."""

    capabilities: ClassVar[Capabilities] = frozenset(
        {Capability.LOSSLESS, Capability.FUSES_RESIDUAL, Capability.OFFERS_MENU}
    )

    menu: tuple[Aggregator[Any], ...]
    shelves: tuple[int, ...]  # where each entry's memory is

    def init(self, spec: TensorSpec, key: Key) -> SwitchState:
        raise NotImplementedError

    def reduce(
        self, tensor: Tensor, spec: TensorSpec, state: SwitchState, ctx: Context
    ) -> Program[Reduced[SwitchState]]:
        entry, shelf = self._entry(spec, ctx)
        out = yield from entry.reduce(tensor, spec, state.entries[shelf], ctx)
        return _outside(out, state, shelf)

    def reduce_with_residual(
        self, tensor: Tensor, residual: Tensor, spec: TensorSpec, state: SwitchState, ctx: Context
    ) -> Program[tuple[Reduced[SwitchState], Tensor]]:
        entry, shelf = self._entry(spec, ctx)
        out, rest = yield from reduce_with_residual(entry, tensor, residual, spec, state.entries[shelf], ctx)
        return _outside(out, state, shelf), rest

    def target(self, tensor: Tensor, spec: TensorSpec, state: SwitchState, ctx: Context) -> Tensor:
        entry, shelf = self._entry(spec, ctx)
        return target_of(entry, tensor, spec, state.entries[shelf], ctx)

    def hand_over(self, state: SwitchState, spec: TensorSpec) -> list[Held]:
        """Of all entries, those included that the plan does not give: what waits there is to be sent, too."""
        return [one for at, own in enumerate(state.entries) for one in held_by(self._owner(at), own, spec)]

    def adopt(
        self, state: SwitchState, spec: TensorSpec, held: Sequence[Held], ctx: Context
    ) -> tuple[SwitchState, list[Held]]:
        """The entry that the plan gives comes first, so that what waits is sent soon; the others may use the rest."""
        _, first = self._entry(spec, ctx)
        entries, rest = list(state.entries), list(held)
        for shelf in (first, *(at for at in range(len(entries)) if at != first)):
            entries[shelf], rest = adopt_into(self._owner(shelf), entries[shelf], spec, rest, ctx)
        return SwitchState(tuple(entries)), rest

    def merge(self, states: Sequence[SwitchState], spec: TensorSpec) -> SwitchState:
        rows = zip(*(state.entries for state in states), strict=True)
        return SwitchState(tuple(merge_memories(self._owner(at), own, spec) for at, own in enumerate(rows)))

    def give_back(self, tensor: Tensor, spec: TensorSpec, state: SwitchState, ctx: Context) -> SwitchState:
        """To the entry that the plan gives, which has sent it."""
        entry, shelf = self._entry(spec, ctx)
        return _with_entry(state, shelf, give_back_to(entry, tensor, spec, state.entries[shelf], ctx))

    def send_form(self) -> SendForm:
        raise needs_all_ranks(self)  # they choose together

    def _owner(self, shelf: int) -> Aggregator[Any]:
        """Of the entries that share a memory, the one that it was made for."""
        return next(e for e, at in zip(reversed(self.menu), reversed(self.shelves), strict=True) if at == shelf)

    def _entry(self, spec: TensorSpec, ctx: Context) -> tuple[Aggregator[Any], int]:
        at = ctx.plan[spec.name]
        if not 0 <= at < len(self.menu):
            raise ProtocolError(
                f"step {ctx.step}: the plan gives {spec.name} entry {at}, the menu has {len(self.menu)}"
            )
        return self.menu[at], self.shelves[at]


@dataclass(frozen=True)
class Switch(Delegates):
    """Delegate each layer to the menu entry a controller chose; memories outside it survive a change of plan."""

    capabilities: ClassVar[Capabilities] = Delegates.capabilities | frozenset({Capability.ACCEPTS_MOMENT_PAIRS})

    menu: tuple[Aggregator[Any], ...]
    by: Controller[Any] | None = None

    def __post_init__(self) -> None:
        if not self.menu:
            raise CompositionError("Switch: the menu is empty; give at least one aggregator")

    @property
    def offers(self) -> Menu:
        return Menu(self.menu)

    @cached_property
    def shelves(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple(range(len(self.menu)))

    def init(self, spec: TensorSpec, key: Key) -> SwitchState:
        return SwitchState(tuple(entry.init(spec, key) for entry in self.menu))


@dataclass(frozen=True)
class Adapt(Delegates):
    """Let `by` turn each layer's knob around what is written: a density, bits, a rank. The first family is the start.

    Densities go from a tenth to ten times theirs in steps of a tenth, bits and ranks from half to twice theirs in
    steps of one; `least` and `most` say otherwise. Several families are one menu: each layer gets what serves it best.
    Entries of a family share one memory: of PowerSGD's factors a smaller rank uses the first, a larger one keeps them.
    """

    families: tuple[Aggregator[Any], ...]
    by: Controller[Any] | None = None
    least: float | None = None
    most: float | None = None

    def __post_init__(self) -> None:
        if not self.families:
            raise CompositionError("Adapt: no family is given; write adapt(topk(density=0.01), by=lgreco())")
        if self.by is None:
            raise CompositionError("Adapt: say who chooses, for example adapt(topk(density=0.01), by=lgreco())")
        for name, value in (("least", self.least), ("most", self.most)):
            if value is not None and not 0 < value < float("inf"):
                raise CompositionError(f"Adapt: {name} is a multiple of the setting, got {value}; 0.5 is usual")
        if (self.least or 0) > 1 or (self.most or 2) < 1:
            raise CompositionError(
                f"Adapt: what is written must lie between least and most, got {self.least} and {self.most}"
            )
        if len(self.menu) < 2:
            raise CompositionError(
                f"Adapt: {type(self.families[0]).__name__} has no density, bits or rank to turn; add a second family"
            )

    @cached_property
    def _ladders(self) -> tuple[tuple[tuple[Aggregator[Any], ...], int], ...]:
        return tuple(ladder(family, self.least, self.most) for family in self.families)

    @cached_property
    def menu(self) -> tuple[Aggregator[Any], ...]:  # type: ignore[override]
        return tuple(rung for rungs, _ in self._ladders for rung in rungs)

    @cached_property
    def shelves(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple(at for at, (rungs, _) in enumerate(self._ladders) for _ in rungs)

    @property
    def offers(self) -> Menu:
        return Menu(self.menu, self._ladders[0][1])

    def init(self, spec: TensorSpec, key: Key) -> SwitchState:
        return SwitchState(tuple(_largest(rungs, spec, key) for rungs, _ in self._ladders))


def _largest(rungs: tuple[Aggregator[Any], ...], spec: TensorSpec, key: Key) -> Any:
    """The memory of the highest rung that has one here: beyond, layers may travel dense."""
    for rung in reversed(rungs):
        state = rung.init(spec, key)
        if any(not isinstance(leaf, Tensor) or leaf.numel() for leaf in flatten_state(state).values()):
            break
    return state


def _outside(out: Reduced[Any], state: SwitchState, shelf: int) -> Reduced[SwitchState]:
    """What an entry gave back, with the memories of all."""

    state_if_excluded = None if out.state_if_excluded is None else _with_entry(state, shelf, out.state_if_excluded)
    return out.with_state(_with_entry(state, shelf, out.state), state_if_excluded)


def _with_entry(state: SwitchState, shelf: int, new: Any) -> SwitchState:
    return SwitchState((*state.entries[:shelf], new, *state.entries[shelf + 1 :]))
