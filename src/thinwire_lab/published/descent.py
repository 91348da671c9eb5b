"""Gradient descent of one worker with compressed gradients: legacy bits beside payload bytes.

Legacy bits are counted as in Khafizov & Beznosikov (2024). The importance experiments share this module.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from thinwire.catalog import parse
from thinwire.core import Program, TensorSpec, World
from thinwire.drivers.lockstep import lockstep
from thinwire.drivers.meter import Meter
from thinwire.exchange import Exchanger
from thinwire.importance import ImportanceSolver, Point, Refresher

LAYER = "weights"
Progress = Callable[[int], None]


def throttle_progress(tell: Callable[[Any], None], steps: int, before: int = 0) -> Progress:
    """Return a function that reports the step number to `tell`, at most once a second."""
    last = time.monotonic()

    def report(done: int) -> None:
        nonlocal last
        if time.monotonic() - last > 1:
            last = time.monotonic()
            tell({"step": before + done, "steps": steps})

    return report


class Problem(Protocol):
    """A function to minimize, given by its gradient."""

    def gradient(self, weights: Tensor) -> Tensor: ...


class GradientOnly:
    """The objective of a solver with keep="last", which needs gradients only; no loss is computed."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def value(self, at: Point) -> float:
        return math.nan

    def value_and_gradient(self, at: Point) -> tuple[float, Point]:
        return math.nan, {LAYER: self.problem.gradient(at[LAYER])}


@dataclass(frozen=True)
class StopRule:
    """When a descent ends: at a relative gradient norm, after a number of messages or legacy bits, or on divergence."""

    tolerance: float = 1e-6
    messages: int = 3000
    bits: int | None = None
    divergence: float = 1e3


def count_legacy_bits(sent: Tensor) -> int:
    """Return the sum of ceil(log2(p + 1)) over the sent values 2^-p (Khafizov & Beznosikov, 2024).

    Signs, positions and scales are not counted.
    """
    powers = -sent[sent != 0].abs().log2().round().clamp(max=0)
    return sum(math.ceil(math.log2(p + 1)) for p in powers.tolist())


@dataclass
class DescentTrace:
    """Relative gradient norms, legacy bits and payload bytes before each message and after the last one.

    `seconds` are clock readings, which differ between equal runs.
    """

    norms: list[float]
    bits: list[int]
    payload_bytes: list[int]
    reached: bool = False
    seconds: float = 0.0
    solver_seconds: float = 0.0

    @property
    def iterations(self) -> int:
        """The number of the last message, counted from 0 as in the paper."""
        return len(self.norms) - 2

    def final_figures(self) -> dict[str, Any]:
        """Return the final figures, without clock readings."""
        return {
            "reached": self.reached, "iterations": self.iterations, "norm": self.norms[-1],
            "legacy_bits": self.bits[-1], "payload_bytes": self.payload_bytes[-1],
        }  # fmt: skip

    def sample_curves(self, max_points: int = 200) -> dict[str, list[Any]]:
        """Return the curves in about `max_points` points, including the last one."""
        every = max(1, len(self.norms) // max_points)
        at = [*range(0, len(self.norms) - 1, every), len(self.norms) - 1]
        columns: dict[str, list[Any]] = {
            "norm": self.norms,
            "legacy_bits": self.bits,
            "payload_bytes": self.payload_bytes,
        }
        return {name: [column[i] for i in at] for name, column in columns.items()}


def descend(
    problem: Problem,
    composition: str,
    start: Tensor,
    step_size: float,
    stop: StopRule,
    solver: ImportanceSolver | None = None,
    solver_problem: Problem | None = None,
    tell: Progress = lambda done: None,
) -> DescentTrace:
    """Run gradient descent with a fixed step size on gradients that pass through the composition.

    A solver computes w before each message, or at its own interval, from gradients of `solver_problem`, which may be
    a faster form of the problem. Legacy bits are meaningful only where sent values are powers of two.
    """
    spec = TensorSpec(LAYER, tuple(start.shape), start.dtype)
    meter, trace = Meter(keep_steps=1), DescentTrace([], [], [])
    exchanger = Exchanger([spec], parse(composition))
    refresher = None if solver is None else Refresher(solver, exchanger.importance)
    objective = GradientOnly(solver_problem or problem)

    def program() -> Program[None]:
        weights, bits = start, 0
        gradient = problem.gradient(weights)
        first = float(gradient.norm())

        def record() -> float:
            trace.norms.append(float(gradient.norm()) / first)
            trace.bits.append(bits)
            trace.payload_bytes.append(int(meter.total().payload_bytes))
            return trace.norms[-1]

        record()
        for message in range(stop.messages):
            if refresher is not None and refresher.is_due(message):
                yield from refresher.refresh(objective, {LAYER: weights}, {LAYER: gradient}, step_size)
            averaged = yield from exchanger.run_step({LAYER: gradient}, message, World(0, 1))
            bits += count_legacy_bits(averaged[LAYER])
            weights = weights - step_size * averaged[LAYER]
            gradient = problem.gradient(weights)
            norm = record()
            tell(message + 1)
            trace.reached = norm <= stop.tolerance
            if trace.reached or not norm <= stop.divergence or (stop.bits is not None and bits >= stop.bits):
                return

    begun = time.perf_counter()
    lockstep([program()], [meter])
    trace.seconds = time.perf_counter() - begun
    trace.solver_seconds = 0.0 if refresher is None else refresher.solve_s
    return trace
