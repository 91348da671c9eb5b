"""L-GreCo: for each layer the cheapest entry, while all layers together lose no more than the reference would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ..core import (
    AllReduce,
    Choices,
    CompositionError,
    Context,
    Key,
    Plan,
    Program,
    Seen,
    TensorSpec,
    derive_key,
    reduce_labels,
)
from .deciding import agreed, first_plan, until_due
from .knapsack import SOLVERS, assignment
from .prices import bytes_of, errors_of

FROM = ("all", "one")
LOOK_AT = ("corrected", "pure")
ERRORS = ("norm", "squared")


class Gathered(NamedTuple):
    """begun: exchanges so far. Of the window before the next decision: sums of what layers wished to send, how many."""

    begun: int
    counts: Tensor
    sums: tuple[Tensor, ...]


@dataclass(frozen=True)
class LGreCo:
    """Choose for each layer, so that fewest bytes are sent and the errors add up to no more than the reference's.

    Decides at exchange `start` and every `every` from there on, from the mean of the last `window` tensors of each
    layer: "corrected" by what its memory kept, or "pure". alpha: of the reference's error. The knapsack has `steps`
    steps, or is solved by a Lagrangian (solver="lagrangian"). Errors are those of "all" ranks on average, or of "one",
    the first; "norm" adds up L2 norms, "squared" their squares. exact=true tries candidates out where an estimate for
    all at once is usual. L-GreCo, arXiv 2210.17357.
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
    choices: Choices = field(default=(), repr=False)

    def __post_init__(self) -> None:
        for name in ("every", "start", "window", "steps"):
            if getattr(self, name) < 1:
                raise CompositionError(f"LGreCo: {name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.alpha < float("inf"):
            raise CompositionError(f"LGreCo: alpha, of the reference's error, must be above 0, got {self.alpha}")
        for name, words in (("solver", SOLVERS), ("statistics", FROM), ("look_at", LOOK_AT), ("error", ERRORS)):
            if getattr(self, name) not in words:
                raise CompositionError(f"LGreCo: {name} must be one of {', '.join(words)}, got {getattr(self, name)!r}")

    def given(self, choices: Choices) -> LGreCo:
        return replace(self, choices=choices)

    def init(self, layers: Sequence[TensorSpec]) -> tuple[Plan, Gathered]:
        sums = tuple(torch.zeros(s.shape, dtype=s.work_dtype, device=s.device) for s, _ in self.choices)
        return first_plan(layers, self.choices), Gathered(0, torch.zeros(len(sums), dtype=torch.int64), sums)

    def observe(self, spec: TensorSpec, seen: Seen, state: Gathered, ctx: Context) -> Gathered:
        at = self._places.get(spec.name)
        if at is None or until_due(state.begun, self.start, self.every) >= self.window:
            return state
        tensor = seen.target() if self.look_at == "corrected" else seen.tensor
        counts = state.counts.clone()
        counts[at] += 1
        return Gathered(state.begun, counts, (*state.sums[:at], state.sums[at] + tensor, *state.sums[at + 1 :]))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {spec.name: at for at, (spec, _) in enumerate(self.choices)}

    def replan(self, plan: Plan, state: Gathered, ctx: Context) -> Program[tuple[Plan, Gathered]]:
        due = bool(self.choices) and until_due(state.begun, self.start, self.every) == 0
        state = state._replace(begun=state.begun + 1)
        if not due:
            return plan, state
        errors = yield from self._errors(state, ctx)
        mine = self._decide(errors, plan, state, ctx) if ctx.world.rank == 0 else plan
        chosen = yield from agreed(mine, self.choices)
        fresh = Gathered(state.begun, torch.zeros_like(state.counts), tuple(map(torch.zeros_like, state.sums)))
        return {**plan, **chosen}, fresh

    def _errors(self, state: Gathered, ctx: Context) -> Program[list[Tensor]]:
        """A row for each layer; nothing in a row that nobody has looked at."""
        alone = self.statistics == "one"
        widths = [len(menu.entries) for _, menu in self.choices]
        if alone and ctx.world.rank != 0:
            return [torch.zeros(width, dtype=torch.float64) for width in widths]
        rows = [
            errors_of(menu.entries, total / max(1, int(count)), spec, self._key(spec, ctx), self.exact)
            for (spec, menu), total, count in zip(self.choices, state.sums, state.counts, strict=True)
        ]
        if alone or ctx.world.size == 1:
            return rows
        table = torch.cat(rows) / ctx.world.size
        table = yield AllReduce(table, labels=reduce_labels("", table, "plan"))
        return list(table.split(widths))

    def _decide(self, errors: list[Tensor], plan: Plan, state: Gathered, ctx: Context) -> Plan:
        """By the first rank: floating-point units may differ, and a plan must not."""
        if not int(state.counts.sum()):
            return plan  # no good step since the last decision
        costs = [
            bytes_of(menu.entries, total, spec, ctx.world.size, self._key(spec, ctx))
            for (spec, menu), total in zip(self.choices, state.sums, strict=True)
        ]
        rows = [row.square() for row in errors] if self.error == "squared" else errors
        reference = [menu.reference for _, menu in self.choices]
        entries = assignment(rows, costs, reference, self.alpha, self.steps, self.solver)
        return {spec.name: entry for (spec, _), entry in zip(self.choices, entries, strict=True)}

    def _key(self, spec: TensorSpec, ctx: Context) -> Key:
        return derive_key(ctx.seed, "prices", ctx.step, spec.name)
