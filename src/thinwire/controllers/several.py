"""Who chooses for which layers: read off the compositions, or told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..core import (
    Aggregator,
    Capabilities,
    Capability,
    Choices,
    Context,
    Controller,
    IncompatibleParts,
    Menu,
    OffersMenu,
    Plan,
    Program,
    Seen,
    TensorSpec,
    explains,
    has,
    measures_world,
    offers_menu,
    parts_of,
    takes_menus,
)
from .fixed import Fixed


def who_chooses(
    layers: Sequence[TensorSpec], rules: Mapping[str, Aggregator[Any]], told: Controller[Any] | None = None
) -> tuple[Choices, Controller[Any]]:
    """The layers that have menus, and the controller that chooses from these: the one told, or their own."""
    parts = [(spec, part) for spec in layers if (part := menu_part(rules[spec.name], spec.name)) is not None]
    choices = tuple((spec, part.offers) for spec, part in parts)
    if told is not None:
        return choices, informed(told, choices)
    owners: list[tuple[Controller[Any], list[tuple[TensorSpec, Menu]]]] = []
    for (_, part), choice in zip(parts, choices, strict=True):
        by = Fixed() if part.by is None else part.by
        known = next((theirs for owner, theirs in owners if owner == by), None)
        if known is None:
            owners.append((by, known := []))
        known.append(choice)
    if len(owners) < 2:
        return choices, informed(owners[0][0], choices) if owners else Fixed()
    theirs = [(frozenset(spec.name for spec, _ in some), informed(by, tuple(some))) for by, some in owners]
    return choices, Several(tuple(theirs))


def menu_part(rule: Aggregator[Any], name: str) -> OffersMenu | None:
    """The part of a composition that has a menu."""
    found = [part for part in parts_of(rule) if offers_menu(part)]
    if len(found) > 1:
        kinds = " and ".join(type(part).__name__ for part in found)
        raise IncompatibleParts(f"{name}: a plan gives a layer one entry, and its composition has two menus: {kinds}")
    return found[0] if found else None


def informed(controller: Controller[Any], choices: Choices) -> Controller[Any]:
    return controller.given(choices) if takes_menus(controller) else controller


def explained(controller: Controller[Any], state: Any) -> dict[str, Any]:
    """What a controller says of itself, if it does."""
    return dict(controller.explained(state)) if explains(controller) else {}


def elsewhere(controller: Controller[Any], state: Any) -> Any:
    """A controller's memory to go on with in a world of another size."""
    return controller.elsewhere(state) if measures_world(controller) else state


@dataclass(frozen=True)
class Several:
    """Each controller has layers of its own, and plans for those alone."""

    owners: tuple[tuple[frozenset[str], Controller[Any]], ...]

    @cached_property
    def capabilities(self) -> Capabilities:
        blind = all(has(controller, Capability.NEVER_OBSERVES) for _, controller in self.owners)
        own = {Capability.EXPLAINS, Capability.MEASURES_WORLD}
        return frozenset(own | {Capability.NEVER_OBSERVES} if blind else own)

    def init(self, layers: Sequence[TensorSpec]) -> tuple[Plan, tuple[Any, ...]]:
        plan: dict[str, int] = {}
        states = []
        for names, controller in self.owners:
            theirs, state = controller.init([spec for spec in layers if spec.name in names])
            plan |= theirs
            states.append(state)
        return {spec.name: plan.get(spec.name, 0) for spec in layers}, tuple(states)

    def observe(self, spec: TensorSpec, seen: Seen, state: tuple[Any, ...], ctx: Context) -> tuple[Any, ...]:
        return tuple(
            controller.observe(spec, seen, own, ctx) if spec.name in names else own
            for (names, controller), own in zip(self.owners, state, strict=True)
        )

    def replan(self, plan: Plan, state: tuple[Any, ...], ctx: Context) -> Program[tuple[Plan, tuple[Any, ...]]]:
        whole, states = dict(plan), []
        for (names, controller), own in zip(self.owners, state, strict=True):
            theirs, own = yield from controller.replan({name: plan[name] for name in plan if name in names}, own, ctx)
            whole |= theirs
            states.append(own)
        return whole, tuple(states)

    def elsewhere(self, state: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(elsewhere(controller, own) for (_, controller), own in zip(self.owners, state, strict=True))

    def explained(self, state: tuple[Any, ...]) -> dict[str, Any]:
        """Decisions of all; what else they say of each is under "each"."""
        each = [explained(controller, own) for (_, controller), own in zip(self.owners, state, strict=True)]
        return {"decisions": sum(one.get("decisions", 0) for one in each), "each": each}
