"""L-GreCo: for each layer the cheapest entry, while all layers together lose no more than the reference would."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import Choices, Context, Controller, Plan, Program, Seen, TensorSpec
from .deciding import agreed
from .gathering import LOOK_AT, Gathered, Gathers, check_settings
from .knapsack import SOLVERS, assignment
from .prices import FROM, cost_table, error_table
from .several import informed

ERRORS = ("norm", "squared")


class Reference(NamedTuple):
    """What the reference chose last, in the order of the choices, and its memory."""

    entries: Tensor
    state: Any


@dataclass(frozen=True)
class LGreCo(Gathers):
    """Choose for each layer, so that fewest bytes are sent and the errors add up to no more than the reference's.

    Decides at exchange `start` and every `every` from there on, from the mean of the last `window` tensors of each
    layer: "corrected" by what its memory kept, or "pure". alpha: of the reference's error. The knapsack has `steps`
    steps, or is solved by a Lagrangian (solver="lagrangian"). Errors are those of "all" ranks on average, or of "one",
    the first; "norm" adds up L2 norms, "squared" their squares. exact=true tries candidates out where an estimate for
    all at once is usual. reference: who says what would be lost, accordion() for example; without, what is written.
    L-GreCo, arXiv 2210.17357.
    """

    every: int = 500
    start: int = 100
    window: int = 10
    alpha: float = 1.0
    steps: int = 10000
    solver: str = "exact"
    statistics: str = "all"
    look_at: str = "corrected"
    error: str = "norm"
    exact: bool = False
    reference: Controller[Any] | None = None
    choices: Choices = field(default=(), repr=False)

    def __post_init__(self) -> None:
        words = {"solver": SOLVERS, "statistics": FROM, "look_at": LOOK_AT, "error": ERRORS}
        check_settings(self, ("every", "start", "window", "steps"), words)

    def given(self, choices: Choices) -> LGreCo:
        told = None if self.reference is None else informed(self.reference, choices)
        return replace(self, choices=choices, reference=told)

    def _own(self) -> Reference | tuple[()]:
        if self.reference is None:
            return ()
        plan, state = self.reference.init([spec for spec, _ in self.choices])
        return Reference(self._entries(plan), state)

    def observe(self, spec: TensorSpec, seen: Seen, state: Gathered, ctx: Context) -> Gathered:
        state = super().observe(spec, seen, state, ctx)
        if self.reference is None or spec.name not in self._places:
            return state
        own = self.reference.observe(spec, seen, state.own.state, ctx)
        return state._replace(own=state.own._replace(state=own))

    def replan(self, plan: Plan, state: Gathered, ctx: Context) -> Program[tuple[Plan, Gathered]]:
        if self.reference is not None:
            told, own = yield from self.reference.replan(self._plan(state.own.entries), state.own.state, ctx)
            state = state._replace(own=Reference(self._entries(told), own))
        return (yield from super().replan(plan, state, ctx))

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
        rows = [row.square() for row in errors] if self.error == "squared" else errors
        written = [menu.reference for _, menu in self.choices]
        reference = written if self.reference is None else state.own.entries.tolist()
        entries = assignment(rows, costs, reference, self.alpha, self.steps, self.solver)
        return self._plan(torch.tensor(entries))

    def _entries(self, plan: Plan) -> Tensor:
        return torch.tensor([plan[spec.name] for spec, _ in self.choices], dtype=torch.int64)

    def _plan(self, entries: Tensor) -> Plan:
        return {spec.name: int(entry) for (spec, _), entry in zip(self.choices, entries.tolist(), strict=True)}
