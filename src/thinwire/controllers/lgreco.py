"""L-GreCo (Alimohammadi et al., 2024): per layer the option of the fewest bytes, within the default's total error.

Ranks all-reduce one error a layer and option; rank 0 solves a knapsack and broadcasts the plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..core import (
    Capabilities,
    Capability,
    CompositionError,
    Context,
    Controller,
    LayerMenus,
    LayerObservation,
    Plan,
    Program,
    TensorSpec,
)
from .base import broadcast_plan
from .composite import bind_menus
from .estimates import ERRORS_FROM, compute_error_table
from .knapsack import SOLVERS, solve_knapsack
from .timing import Timing, byte_weights, draw_plan, fit, record_sample
from .windowed import OBSERVED, WindowedController, WindowState, check_alpha, check_settings

ERRORS = ("norm", "squared")
OBJECTIVES = ("bytes", "time")


class LGreCoState(NamedTuple):
    """State beside the window."""

    timing: Timing | tuple[()]  # seconds per byte, for objective="time"
    defaults: Tensor  # (layers,) options; their errors make the budget
    defaults_state: Any  # of the controller that `defaults_from` names


@dataclass(frozen=True)
class LGreCo(WindowedController):
    """Choose one option per layer: the fewest bytes such that errors add up to no more than the default's.

    Settings:
        every, start, window: decide at exchange `start` and each `every` from there on, from the mean of the last
            `window` tensors of each layer.
        alpha: of the default's error.
        error_levels: of the exact solver, a dynamic program over a discrete budget.
        solver: "exact" or "lagrangian", which is quicker and near the optimum.
        errors_from: "all" averages errors over ranks, "rank0" takes rank 0's.
        observed: errors are those of the "gradient", or of the "target", which a memory has added to.
        error: "norm" adds up L2 norms, "squared" their squares.
        exact_errors: run options where estimates for all at once are usual.
        objective: "bytes", or "time", which counts seconds: during the first `calibration_steps` exchanges plans are
            drawn at random, and seconds per byte are fitted for each bucket.
        defaults_from: a controller, accordion() for example; its plan is the default that errors are compared with.

    Alimohammadi et al., 2024.
    """

    capabilities: ClassVar[Capabilities] = WindowedController.capabilities | frozenset({Capability.RESIZES_STATE})

    every: int = 500
    start: int = 100
    window: int = 10
    alpha: float = 1.0
    error_levels: int = 10000
    solver: str = "exact"
    errors_from: str = "all"
    observed: str = "gradient"
    error: str = "norm"
    exact_errors: bool = False
    objective: str = "bytes"
    calibration_steps: int = 50
    defaults_from: Controller[Any] | None = None
    menus: LayerMenus = field(default=(), repr=False)

    def __post_init__(self) -> None:
        words = {"solver": SOLVERS, "errors_from": ERRORS_FROM, "observed": OBSERVED, "error": ERRORS}
        check_alpha("LGreCo", self.alpha)
        counts = ("every", "start", "window", "error_levels", "calibration_steps")
        check_settings(self, counts, words | {"objective": OBJECTIVES})
        if self.objective == "time" and self.start < self.calibration_steps:
            raise CompositionError(
                f"LGreCo: start must be at least calibration_steps, got start={self.start} and "
                f"calibration_steps={self.calibration_steps}"
            )

    def with_menus(self, menus: LayerMenus) -> LGreCo:
        bound = None if self.defaults_from is None else bind_menus(self.defaults_from, menus)
        return replace(self, menus=menus, defaults_from=bound)

    def _init_extra(self) -> LGreCoState:
        timing = Timing.empty(self.calibration_steps, len(self.menus)) if self.objective == "time" else ()
        plan: Plan = {spec.name: menu.default for spec, menu in self.menus}
        state: Any = ()
        if self.defaults_from is not None:
            plan, state = self.defaults_from.init([spec for spec, _ in self.menus])
        return LGreCoState(timing, self._to_options(plan), state)

    def observe(self, spec: TensorSpec, observation: LayerObservation, state: WindowState, ctx: Context) -> WindowState:
        index, extra = self._layer_index.get(spec.name), state.extra
        if index is None:
            return state
        if extra.timing:
            timing = record_sample(extra.timing, index, state.num_exchanges - 1, observation)
            extra = extra._replace(timing=timing)
        if self.defaults_from is not None:
            defaults_state = self.defaults_from.observe(spec, observation, extra.defaults_state, ctx)
            extra = extra._replace(defaults_state=defaults_state)
        return super().observe(spec, observation, state._replace(extra=extra), ctx)

    def replan(self, plan: Plan, state: WindowState, ctx: Context) -> Program[tuple[Plan, WindowState]]:
        extra = state.extra
        if self.defaults_from is not None:
            defaults = self._to_plan(extra.defaults)
            defaults, own = yield from self.defaults_from.replan(defaults, extra.defaults_state, ctx)
            extra = extra._replace(defaults=self._to_options(defaults), defaults_state=own)
            state = state._replace(extra=extra)
        if extra.timing and self.menus and state.num_exchanges <= self.calibration_steps:
            plan, timing = yield from self._calibrate(plan, state, ctx)
            state = state._replace(extra=extra._replace(timing=timing))
        return (yield from super().replan(plan, state, ctx))

    def _calibrate(self, plan: Plan, state: WindowState, ctx: Context) -> Program[tuple[Plan, Timing]]:
        """Draw a random plan; after the last one, fit seconds per byte and return to the defaults."""
        timing = state.extra.timing
        if state.num_exchanges < self.calibration_steps:
            return (yield from draw_plan(plan, timing, state.num_exchanges, self.menus, ctx))
        costs = self._costs.compute(state.means().__getitem__, ctx) if ctx.world.rank == 0 else []
        timing = yield from fit(timing, costs, ctx)
        return {**plan, **self._to_plan(state.extra.defaults)}, timing

    def on_world_resize(self, state: WindowState) -> WindowState:
        """Measure seconds per byte again. Without them nothing changes: bytes are computed for the world at hand."""
        if not state.extra.timing:
            return state
        _, first = self.init([spec for spec, _ in self.menus])
        return first._replace(extra=state.extra._replace(timing=first.extra.timing))

    def report(self, state: WindowState) -> dict[str, Any]:
        timing = state.extra.timing
        return super().report(state) | (timing.report() if timing else {"objective": "bytes"})

    def _decide(self, plan: Plan, state: WindowState, ctx: Context) -> Program[tuple[Plan, Any]]:
        means = state.means()
        errors = yield from compute_error_table(self.menus, means, ctx, self.errors_from, self.exact_errors)
        own = self._solve(errors, means, plan, state, ctx) if ctx.world.rank == 0 else plan
        chosen = yield from broadcast_plan(own, self.menus)
        return chosen, state.extra

    def _solve(self, errors: list[Tensor], means: list[Tensor], plan: Plan, state: WindowState, ctx: Context) -> Plan:
        """On rank 0 only: floating-point results may differ between machines, and plans must not."""
        if not int(state.counts.sum()):
            return plan  # no good step since the last decision
        costs = self._costs.compute(means.__getitem__, ctx)
        if state.extra.timing:
            costs = [row * weight for row, weight in zip(costs, byte_weights(state.extra.timing), strict=True)]
        rows = [row.square() for row in errors] if self.error == "squared" else errors
        defaults = state.extra.defaults.tolist()
        options = solve_knapsack(rows, costs, defaults, self.alpha, self.error_levels, self.solver)
        return self._to_plan(torch.tensor(options))

    def _to_options(self, plan: Plan) -> Tensor:
        return torch.tensor([plan[spec.name] for spec, _ in self.menus], dtype=torch.int64)

    def _to_plan(self, options: Tensor) -> Plan:
        return {spec.name: int(option) for (spec, _), option in zip(self.menus, options.tolist(), strict=True)}
