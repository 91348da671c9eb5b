"""L-GreCo: for each layer the cheapest entry, while all layers together lose no more than the reference would."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..core import (
    Capabilities,
    Capability,
    Choices,
    CompositionError,
    Context,
    Controller,
    Plan,
    Program,
    Seen,
    TensorSpec,
)
from .deciding import agreed
from .gathering import LOOK_AT, Gathered, Gathers, check_alpha, check_settings
from .knapsack import SOLVERS, assignment
from .prices import FROM, cost_table, error_table
from .several import informed
from .timing import Timing, drawn, fitted, noted, weights_of

ERRORS = ("norm", "squared")
OBJECTIVES = ("bytes", "time")


class Beside(NamedTuple):
    """What time costs, where that counts. What the reference chose last, in the order of the choices; its memory."""

    timing: Timing | tuple[()]
    entries: Tensor
    reference: Any


@dataclass(frozen=True)
class LGreCo(Gathers):
    """Choose for each layer, so that fewest bytes are sent and the errors add up to no more than the reference's.

    Decides at exchange `start` and every `every` from there on, from the mean of the last `window` tensors of each
    layer: "pure", or "corrected" by what its memory kept. alpha: of the reference's error. The knapsack has `steps`
    steps, or is solved by a Lagrangian (solver="lagrangian"). Errors are those of "all" ranks on average, or of "one",
    the first; "norm" adds up L2 norms, "squared" their squares. exact=true tries candidates out where an estimate for
    all at once is usual. objective="time" counts seconds instead of bytes: during the first `calibrate` exchanges plans
    are drawn at random, and seconds a byte fitted for each bucket. reference: whose choice it is that all errors are
    held against, accordion() for example; without, what is written. L-GreCo, arXiv 2210.17357.
    """

    capabilities: ClassVar[Capabilities] = Gathers.capabilities | frozenset({Capability.MEASURES_WORLD})

    every: int = 500
    start: int = 100
    window: int = 10
    alpha: float = 1.0
    steps: int = 10000
    solver: str = "exact"
    statistics: str = "all"
    look_at: str = "pure"
    error: str = "norm"
    exact: bool = False
    objective: str = "bytes"
    calibrate: int = 50
    reference: Controller[Any] | None = None
    choices: Choices = field(default=(), repr=False)

    def __post_init__(self) -> None:
        words = {"solver": SOLVERS, "statistics": FROM, "look_at": LOOK_AT, "error": ERRORS, "objective": OBJECTIVES}
        check_alpha("LGreCo", self.alpha)
        check_settings(self, ("every", "start", "window", "steps", "calibrate"), words)
        if self.objective == "time" and self.start < self.calibrate:
            raise CompositionError(
                f"LGreCo: start must not come before calibrate, which is {self.calibrate}, got {self.start}"
            )

    def given(self, choices: Choices) -> LGreCo:
        told = None if self.reference is None else informed(self.reference, choices)
        return replace(self, choices=choices, reference=told)

    def _own(self) -> Beside:
        timing = Timing.over(self.calibrate, len(self.choices)) if self.objective == "time" else ()
        plan: Plan = {spec.name: menu.reference for spec, menu in self.choices}
        state: Any = ()
        if self.reference is not None:
            plan, state = self.reference.init([spec for spec, _ in self.choices])
        return Beside(timing, self._entries(plan), state)

    def observe(self, spec: TensorSpec, seen: Seen, state: Gathered, ctx: Context) -> Gathered:
        at, own = self._places.get(spec.name), state.own
        if at is None:
            return state
        if own.timing:
            own = own._replace(timing=noted(own.timing, at, state.begun - 1, seen))
        if self.reference is not None:
            own = own._replace(reference=self.reference.observe(spec, seen, own.reference, ctx))
        return super().observe(spec, seen, state._replace(own=own), ctx)

    def replan(self, plan: Plan, state: Gathered, ctx: Context) -> Program[tuple[Plan, Gathered]]:
        if self.reference is not None:
            told, mine = yield from self.reference.replan(self._plan(state.own.entries), state.own.reference, ctx)
            state = state._replace(own=state.own._replace(entries=self._entries(told), reference=mine))
        if state.own.timing and self.choices and state.begun <= self.calibrate:
            plan, timing = yield from self._calibrated(plan, state, ctx)
            state = state._replace(own=state.own._replace(timing=timing))
        return (yield from super().replan(plan, state, ctx))

    def _calibrated(self, plan: Plan, state: Gathered, ctx: Context) -> Program[tuple[Plan, Timing]]:
        if state.begun < self.calibrate:
            return (yield from drawn(plan, state.own.timing, state.begun, self.choices, ctx))
        costs = cost_table(self.choices, state.means(), ctx) if ctx.world.rank == 0 else []
        timing = yield from fitted(state.own.timing, costs, ctx)
        return {**plan, **self._plan(state.own.entries)}, timing

    def elsewhere(self, state: Gathered) -> Gathered:
        """Bytes cost other seconds there: measure and decide anew. Without seconds, prices follow the world anyway."""
        if not state.own.timing:
            return state
        _, first = self.init([spec for spec, _ in self.choices])
        return first._replace(own=state.own._replace(timing=first.own.timing))

    def explained(self, state: Gathered) -> dict[str, Any]:
        timing = state.own.timing
        return super().explained(state) | (timing.explained() if timing else {"objective": "bytes"})

    def _decided(self, plan: Plan, state: Gathered, ctx: Context) -> Program[tuple[Plan, Any]]:
        errors = yield from error_table(self.choices, state.means(), ctx, self.statistics, self.exact)
        mine = self._decide(errors, plan, state, ctx) if ctx.world.rank == 0 else plan
        chosen = yield from agreed(mine, self.choices)
        return chosen, state.own

    def _decide(self, errors: list[Tensor], plan: Plan, state: Gathered, ctx: Context) -> Plan:
        """By the first rank: floating-point units may differ, and a plan must not."""
        if not int(state.counts.sum()):
            return plan  # no good step since the last decision
        costs = cost_table(self.choices, state.means(), ctx)
        if state.own.timing:
            costs = [row * weight for row, weight in zip(costs, weights_of(state.own.timing), strict=True)]
        rows = [row.square() for row in errors] if self.error == "squared" else errors
        entries = assignment(rows, costs, state.own.entries.tolist(), self.alpha, self.steps, self.solver)
        return self._plan(torch.tensor(entries))

    def _entries(self, plan: Plan) -> Tensor:
        return torch.tensor([plan[spec.name] for spec, _ in self.choices], dtype=torch.int64)

    def _plan(self, entries: Tensor) -> Plan:
        return {spec.name: int(entry) for (spec, _), entry in zip(self.choices, entries.tolist(), strict=True)}
