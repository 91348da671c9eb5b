"""Which controller chooses for which layers: one for all layers, or those in the compositions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..core import (
    Aggregator,
    Capabilities,
    Capability,
    Context,
    Controller,
    HasMenu,
    IncompatibleParts,
    LayerMenus,
    LayerObservation,
    Menu,
    Plan,
    Program,
    TensorSpec,
    has,
    has_menu,
    parts_of,
    reports,
    resizes_state,
    takes_menus,
)
from .fixed import Fixed


def resolve_controller(
    layers: Sequence[TensorSpec], aggregators: Mapping[str, Aggregator[Any]], override: Controller[Any] | None = None
) -> tuple[LayerMenus, Controller[Any]]:
    """Return the menus of all layers that have one, and the controller that chooses from them.

    Args:
        layers: all layers.
        aggregators: the composition of each layer, by its name.
        override: a controller for all menus; without it, each composition's own `controller` chooses for its layers.
    """
    parts = [(spec, part) for spec in layers if (part := find_menu_part(aggregators[spec.name], spec.name)) is not None]
    menus = tuple((spec, part.menu) for spec, part in parts)
    if override is not None:
        return menus, bind_menus(override, menus)
    groups: list[tuple[Controller[Any], list[tuple[TensorSpec, Menu]]]] = []
    for (_, part), layer_menu in zip(parts, menus, strict=True):
        controller = Fixed() if part.controller is None else part.controller
        own = next((group for member, group in groups if member == controller), None)
        if own is None:
            groups.append((controller, own := []))
        own.append(layer_menu)
    if len(groups) < 2:
        return menus, bind_menus(groups[0][0], menus) if groups else Fixed()
    members = [(frozenset(spec.name for spec, _ in own), bind_menus(member, tuple(own))) for member, own in groups]
    return menus, CompositeController(tuple(members))


def find_menu_part(aggregator: Aggregator[Any], name: str) -> HasMenu | None:
    """Return the part of a layer's composition that has a menu; None if there is none."""
    found = [part for part in parts_of(aggregator) if has_menu(part)]
    if len(found) > 1:
        kinds = " and ".join(type(part).__name__ for part in found)
        raise IncompatibleParts(f"{name}: a plan gives a layer one option, and its composition has two menus: {kinds}")
    return found[0] if found else None


def bind_menus(controller: Controller[Any], menus: LayerMenus) -> Controller[Any]:
    """Return the controller with the menus it chooses from, if it takes them."""
    return controller.with_menus(menus) if takes_menus(controller) else controller


def report_controller(controller: Controller[Any], state: Any) -> dict[str, Any]:
    """Return what a controller reports of its decisions; nothing if it does not report."""
    return dict(controller.report(state)) if reports(controller) else {}


def resize_state(controller: Controller[Any], state: Any) -> Any:
    """Return a controller's state to continue with in a world of another size."""
    return controller.on_world_resize(state) if resizes_state(controller) else state


@dataclass(frozen=True)
class CompositeController:
    """Several controllers, each for layers of its own: (names, controller)."""

    members: tuple[tuple[frozenset[str], Controller[Any]], ...]

    @cached_property
    def capabilities(self) -> Capabilities:
        never_observes = all(has(controller, Capability.NEVER_OBSERVES) for _, controller in self.members)
        own = {Capability.REPORTS, Capability.RESIZES_STATE}
        return frozenset(own | {Capability.NEVER_OBSERVES} if never_observes else own)

    def init(self, layers: Sequence[TensorSpec]) -> tuple[Plan, tuple[Any, ...]]:
        plan: dict[str, int] = {}
        states = []
        for names, controller in self.members:
            own_plan, state = controller.init([spec for spec in layers if spec.name in names])
            plan |= own_plan
            states.append(state)
        return {spec.name: plan.get(spec.name, 0) for spec in layers}, tuple(states)

    def observe(
        self, spec: TensorSpec, observation: LayerObservation, state: tuple[Any, ...], ctx: Context
    ) -> tuple[Any, ...]:
        return tuple(
            controller.observe(spec, observation, own, ctx) if spec.name in names else own
            for (names, controller), own in zip(self.members, state, strict=True)
        )

    def replan(self, plan: Plan, state: tuple[Any, ...], ctx: Context) -> Program[tuple[Plan, tuple[Any, ...]]]:
        new_plan, states = dict(plan), []
        for (names, controller), own in zip(self.members, state, strict=True):
            own_plan, own = yield from controller.replan({name: plan[name] for name in plan if name in names}, own, ctx)
            new_plan |= own_plan
            states.append(own)
        return new_plan, tuple(states)

    def on_world_resize(self, state: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(resize_state(controller, own) for (_, controller), own in zip(self.members, state, strict=True))

    def report(self, state: tuple[Any, ...]) -> dict[str, Any]:
        """Decisions of all members; each member's own report is under "each"."""
        each = [report_controller(controller, own) for (_, controller), own in zip(self.members, state, strict=True)]
        return {"decisions": sum(one.get("decisions", 0) for one in each), "each": each}
