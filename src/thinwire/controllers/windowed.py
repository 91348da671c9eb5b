"""Base of controllers that decide periodically, from each layer's mean tensor over a window of exchanges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..core import (
    Capabilities,
    Capability,
    CompositionError,
    Context,
    LayerMenus,
    LayerObservation,
    Plan,
    Program,
    TensorSpec,
)
from .base import default_plan, exchanges_until_decision
from .estimates import CostTable

OBSERVED = ("gradient", "target")
W = TypeVar("W", bound="WindowedController")


class WindowState(NamedTuple):
    """Exchanges so far; of the window before the next decision, the sum of each layer's tensors and their number."""

    num_exchanges: int
    counts: Tensor  # (layers,)
    sums: tuple[Tensor, ...]
    extra: Any = ()  # state of the subclass

    def means(self) -> list[Tensor]:
        return [total / max(1, count) for total, count in zip(self.sums, self.counts.tolist(), strict=True)]


class WindowedController:
    """Decides at exchange `start` and every `every` from there on, by the last `window` tensors of each layer.

    observed: "gradient", or "target", the gradient plus the residual of a memory.
    """

    capabilities: ClassVar[Capabilities] = frozenset({Capability.TAKES_MENUS, Capability.REPORTS})

    every: int
    start: int
    window: int
    observed: str
    menus: LayerMenus

    def with_menus(self: W, menus: LayerMenus) -> W:
        return replace(self, menus=menus)  # type: ignore[type-var]

    def init(self, layers: Sequence[TensorSpec]) -> tuple[Plan, WindowState]:
        sums = tuple(torch.zeros(s.shape, dtype=s.work_dtype, device=s.device) for s, _ in self.menus)
        counts = torch.zeros(len(sums), dtype=torch.int64)
        return default_plan(layers, self.menus), WindowState(0, counts, sums, self._init_extra())

    def _init_extra(self) -> Any:
        """State that a subclass keeps beside the window."""
        return ()

    def observe(self, spec: TensorSpec, observation: LayerObservation, state: WindowState, ctx: Context) -> WindowState:
        index = self._layer_index.get(spec.name)
        if index is None or exchanges_until_decision(state.num_exchanges, self.start, self.every) >= self.window:
            return state
        tensor = observation.target() if self.observed == "target" else observation.tensor
        counts = state.counts.clone()
        counts[index] += 1
        sums = (*state.sums[:index], state.sums[index] + tensor, *state.sums[index + 1 :])
        return state._replace(counts=counts, sums=sums)

    @cached_property
    def _layer_index(self) -> dict[str, int]:
        return {spec.name: index for index, (spec, _) in enumerate(self.menus)}

    @cached_property
    def _costs(self) -> CostTable:
        return CostTable(self.menus)

    def replan(self, plan: Plan, state: WindowState, ctx: Context) -> Program[tuple[Plan, WindowState]]:
        is_due = bool(self.menus) and exchanges_until_decision(state.num_exchanges, self.start, self.every) == 0
        state = state._replace(num_exchanges=state.num_exchanges + 1)
        if not is_due:
            return plan, state
        chosen, extra = yield from self._decide(plan, state, ctx)
        counts, sums = torch.zeros_like(state.counts), tuple(map(torch.zeros_like, state.sums))
        return {**plan, **chosen}, state._replace(counts=counts, sums=sums, extra=extra)

    def report(self, state: WindowState) -> dict[str, Any]:
        decisions = max(0, -(-(state.num_exchanges - self.start) // self.every)) if self.menus else 0
        return {"decisions": decisions}

    def _decide(self, plan: Plan, state: WindowState, ctx: Context) -> Program[tuple[Plan, Any]]:
        """Return options for the layers that have menus, the same on all ranks, and the new `extra`."""
        raise NotImplementedError


def check_alpha(kind: str, alpha: float) -> None:
    if not 0 < alpha < float("inf"):
        raise CompositionError(
            f"{kind}: alpha, a multiple of the default's error, must be above 0, got {alpha}; 1.0 is usual"
        )


def check_settings(part: Any, at_least_one: Sequence[str], words: Mapping[str, Sequence[str]]) -> None:
    """Check a controller's settings: integers of at least 1, and settings that are one of a few words."""
    kind = type(part).__name__
    for name in at_least_one:
        if getattr(part, name) < 1:
            raise CompositionError(f"{kind}: {name} must be at least 1, got {getattr(part, name)}")
    for name, known in words.items():
        if getattr(part, name) not in known:
            raise CompositionError(f"{kind}: {name} must be one of {', '.join(known)}, got {getattr(part, name)!r}")
