"""Shared by all controllers: the default plan, the schedule of decisions, the broadcast of rank 0's plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from ..core import (
    Broadcast,
    Capabilities,
    Capability,
    Context,
    Label,
    LayerMenus,
    LayerObservation,
    Payload,
    Plan,
    Program,
    TensorSpec,
)


def default_plan(layers: Sequence[TensorSpec], menus: LayerMenus) -> Plan:
    """Each layer's default option; 0 for layers without a menu, which ignore it."""
    defaults = {spec.name: menu.default for spec, menu in menus}
    return {spec.name: defaults.get(spec.name, 0) for spec in layers}


def exchanges_until_decision(num_exchanges: int, start: int, every: int) -> int:
    """How many exchanges come before the next decision. Decisions are at `start` and each `every` from there on."""
    return start - num_exchanges if num_exchanges <= start else -(num_exchanges - start) % every


def broadcast_plan(plan: Plan, menus: LayerMenus) -> Program[Plan]:
    """Return rank 0's plan for the layers that have menus, on all ranks: 4 bytes a layer."""
    names = [spec.name for spec, _ in menus]
    own = torch.tensor([plan[name] for name in names], dtype=torch.int32)
    label = Label("", "plan", own.nbytes, 8.0 * own.nbytes)
    received = yield Broadcast(Payload((own,)), 0, (label,))
    return dict(zip(names, received.parts[0].tolist(), strict=True))


class StaticController:
    """Base of controllers with a constant plan. They observe nothing and send nothing."""

    capabilities: ClassVar[Capabilities] = frozenset({Capability.NEVER_OBSERVES})

    def observe(self, spec: TensorSpec, observation: LayerObservation, state: tuple[()], ctx: Context) -> tuple[()]:
        return state

    def replan(self, plan: Plan, state: tuple[()], ctx: Context) -> Program[tuple[Plan, tuple[()]]]:
        return plan, state
        yield  # makes this a generator; it requests nothing
