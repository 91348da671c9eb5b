"""When w is found anew, and what that costs."""

from __future__ import annotations

import time
from collections.abc import MutableMapping
from typing import TypeVar

from torch import Tensor

from ..core import Program, World, with_step, with_timing
from .objectives import Objective, Point
from .solver import ImportanceSolver, Solution

T = TypeVar("T")


class Refresher:
    """Keeps `exchanger.importance` fresh: `if refresher.due(step): driver.run(refresher.refresh(...))`.

    Refresh between steps, never inside backward. `seconds` is the time this rank computed in the solver, waiting for
    others not counted; `share` is that of the time since the refresher was made. Clocks are read for these two alone.
    """

    def __init__(self, solver: ImportanceSolver, importance: MutableMapping[str, Tensor]) -> None:
        self.solver, self.importance = solver, importance
        self.seconds, self.refreshes = 0.0, 0
        self._since = time.perf_counter()

    def due(self, step: int) -> bool:
        """Decided by the step alone, so that ranks agree."""
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
        """Solve for w and set it. A program; if w is not shared it asks for nothing, and `loopback` will do."""
        program = self.solver.solve(objective, point, gradient, gamma, self.importance, world)
        solution = yield from with_step(with_timing(program, self._count_seconds), step)
        self.importance.update(solution.importance)
        self.refreshes += 1
        return solution

    @property
    def share(self) -> float:
        return self.seconds / max(1e-9, time.perf_counter() - self._since)

    def _count_seconds(self, began: float, ended: float) -> None:
        """The time the solver runs, not the time it waits for other ranks."""
        self.seconds += ended - began
