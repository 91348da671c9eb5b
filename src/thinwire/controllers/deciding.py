"""What controllers share: the plan to begin with, when a decision is due, and that all ranks take the same one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from ..core import (
    Broadcast,
    Capabilities,
    Capability,
    Choices,
    Context,
    Label,
    Payload,
    Plan,
    Program,
    Seen,
    TensorSpec,
)


def first_plan(layers: Sequence[TensorSpec], choices: Choices) -> Plan:
    """The reference of every menu; layers without one ignore their entry."""
    reference = {spec.name: menu.reference for spec, menu in choices}
    return {spec.name: reference.get(spec.name, 0) for spec in layers}


def until_due(begun: int, start: int, every: int) -> int:
    """How many exchanges come before the next decision, which are at `start`, and each `every` from there on."""
    return start - begun if begun <= start else -(begun - start) % every


def agreed(plan: Plan, choices: Choices) -> Program[Plan]:
    """The first rank's plan for the layers that have menus."""
    names = [spec.name for spec, _ in choices]
    mine = torch.tensor([plan[name] for name in names], dtype=torch.int32)
    label = Label("", "plan", mine.nbytes, 8.0 * mine.nbytes)
    told = yield Broadcast(Payload((mine,)), 0, (label,))
    return dict(zip(names, told.parts[0].tolist(), strict=True))


class Settled:
    """A controller that never changes its mind and never talks."""

    capabilities: ClassVar[Capabilities] = frozenset({Capability.NEVER_OBSERVES})

    def observe(self, spec: TensorSpec, seen: Seen, state: tuple[()], ctx: Context) -> tuple[()]:
        return state

    def replan(self, plan: Plan, state: tuple[()], ctx: Context) -> Program[tuple[Plan, tuple[()]]]:
        return plan, state
        yield  # a program that asks for nothing
