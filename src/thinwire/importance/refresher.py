"""Refresh of the importance w at fixed steps, with a measurement of the time it takes."""

from __future__ import annotations

import time
from collections.abc import MutableMapping

from torch import Tensor

from ..core import Program, World, with_step, with_timing
from .objectives import Objective, Point
from .solver import ImportanceSolver, Solution


class Refresher:
    """Solves for `exchanger.importance` every `solver.refresh_every` steps.

    `if refresher.is_due(step): driver.run(refresher.refresh(...))`, between steps, never inside backward.

    Attributes:
        solve_s: seconds that this rank computed in the solver; waiting for other ranks is not counted.
        num_refreshes: how often w was solved for.
    """

    def __init__(self, solver: ImportanceSolver, importance: MutableMapping[str, Tensor]) -> None:
        self.solver, self.importance = solver, importance
        self.solve_s, self.num_refreshes = 0.0, 0
        self._created = time.perf_counter()

    def is_due(self, step: int) -> bool:
        """Whether w is refreshed at this step. Depends on the step alone, so that all ranks agree."""
        return step % self.solver.refresh_every == 0

    def refresh(
        self,
        objective: Objective,
        point: Point,
        gradient: Point,
        gamma: float,
        step: int = 0,
        world: World = World(0, 1),  # noqa: B008 (a tuple)
    ) -> Program[Solution]:
        """Solve for w and store it.

        Args:
            objective: the loss on a minibatch, such as a ModuleObjective.
            point: the parameters by name.
            gradient: what would be sent by name; with error feedback, gradient plus residual (`exchanger.targets`).
            gamma: step size of the trial step, usually the learning rate.
            step: of the optimizer, for the meter.
            world: rank and size.

        Returns:
            A program; without `shared` it yields no request, and `loopback` can run it.
        """
        program = self.solver.solve(objective, point, gradient, gamma, self.importance, world)
        solution = yield from with_step(with_timing(program, self._add_seconds), step)
        self.importance.update(solution.importance)
        self.num_refreshes += 1
        return solution

    @property
    def time_fraction(self) -> float:
        """solve_s as a fraction of the time since this object was created."""
        return self.solve_s / max(1e-9, time.perf_counter() - self._created)

    def _add_seconds(self, began: float, ended: float) -> None:
        self.solve_s += ended - began
