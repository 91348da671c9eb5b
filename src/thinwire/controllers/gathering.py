"""What controllers that look share: the mean of what each layer sent in the exchanges before a decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..core import Capabilities, Capability, Choices, CompositionError, Context, Plan, Program, Seen, TensorSpec
from .deciding import first_plan, until_due

LOOK_AT = ("corrected", "pure")
G = TypeVar("G", bound="Gathers")


class Gathered(NamedTuple):
    """begun: exchanges so far. Of the window before the next decision: sums of what layers wished to send, how many.

    own: what else the controller remembers.
    """

    begun: int
    counts: Tensor
    sums: tuple[Tensor, ...]
    own: Any = ()

    def means(self) -> list[Tensor]:
        return [total / max(1, int(count)) for total, count in zip(self.sums, self.counts, strict=True)]


class Gathers:
    """Decides at exchange `start` and every `every` from there on, by the last `window` tensors of each layer."""

    capabilities: ClassVar[Capabilities] = frozenset({Capability.TAKES_MENUS, Capability.EXPLAINS})

    every: int
    start: int
    window: int
    look_at: str
    choices: Choices

    def given(self: G, choices: Choices) -> G:
        return replace(self, choices=choices)  # type: ignore[type-var]

    def init(self, layers: Sequence[TensorSpec]) -> tuple[Plan, Gathered]:
        sums = tuple(torch.zeros(s.shape, dtype=s.work_dtype, device=s.device) for s, _ in self.choices)
        counts = torch.zeros(len(sums), dtype=torch.int64)
        return first_plan(layers, self.choices), Gathered(0, counts, sums, self._own())

    def _own(self) -> Any:
        """What it remembers to begin with, beside the window."""
        return ()

    def observe(self, spec: TensorSpec, seen: Seen, state: Gathered, ctx: Context) -> Gathered:
        at = self._places.get(spec.name)
        if at is None or until_due(state.begun, self.start, self.every) >= self.window:
            return state
        tensor = seen.target() if self.look_at == "corrected" else seen.tensor
        counts = state.counts.clone()
        counts[at] += 1
        sums = (*state.sums[:at], state.sums[at] + tensor, *state.sums[at + 1 :])
        return state._replace(counts=counts, sums=sums)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {spec.name: at for at, (spec, _) in enumerate(self.choices)}

    def replan(self, plan: Plan, state: Gathered, ctx: Context) -> Program[tuple[Plan, Gathered]]:
        due = bool(self.choices) and until_due(state.begun, self.start, self.every) == 0
        state = state._replace(begun=state.begun + 1)
        if not due:
            return plan, state
        chosen, own = yield from self._decided(plan, state, ctx)
        counts, sums = torch.zeros_like(state.counts), tuple(map(torch.zeros_like, state.sums))
        return {**plan, **chosen}, Gathered(state.begun, counts, sums, own)

    def explained(self, state: Gathered) -> dict[str, Any]:
        return {"decisions": max(0, -(-(state.begun - self.start) // self.every)) if self.choices else 0}

    def _decided(self, plan: Plan, state: Gathered, ctx: Context) -> Program[tuple[Plan, Any]]:
        """Entries for the layers that have menus, the same on all ranks, and what to remember beside the window."""
        raise NotImplementedError


def check_alpha(kind: str, alpha: float) -> None:
    if not 0 < alpha < float("inf"):
        raise CompositionError(f"{kind}: alpha, of the reference's error, must be above 0, got {alpha}")


def check_settings(part: Any, at_least_one: Sequence[str], words: Mapping[str, Sequence[str]]) -> None:
    """For controllers, when they are made: numbers that count, and settings that are one of a few words."""
    kind = type(part).__name__
    for name in at_least_one:
        if getattr(part, name) < 1:
            raise CompositionError(f"{kind}: {name} must be at least 1, got {getattr(part, name)}")
    for name, known in words.items():
        if getattr(part, name) not in known:
            raise CompositionError(f"{kind}: {name} must be one of {', '.join(known)}, got {getattr(part, name)!r}")
