"""Gradient descent of one worker until its gradient is small, with S0's bits beside honest bytes: E1 and its kin."""

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
Tell = Callable[[int], None]


def telling(tell: Callable[[Any], None], steps: int, before: int = 0) -> Tell:
    """What a descent tells, as a job does: at most once a second, since it speaks at every step."""
    last = time.monotonic()

    def told(done: int) -> None:
        nonlocal last
        if time.monotonic() - last > 1:
            last = time.monotonic()
            tell({"step": before + done, "steps": steps})

    return told


class Problem(Protocol):
    def gradient(self, weights: Tensor) -> Tensor: ...


class GradientOnly:
    """What a solver that keeps its last w asks for. It looks at no loss, so that none is computed."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def value(self, at: Point) -> float:
        return math.nan

    def value_and_gradient(self, at: Point) -> tuple[float, Point]:
        return math.nan, {LAYER: self.problem.gradient(at[LAYER])}


@dataclass(frozen=True)
class Stop:
    """When a descent ends: at this relative gradient norm, after so many messages or legacy bits, or in explosion."""

    tolerance: float = 1e-6
    messages: int = 3000
    bits: int | None = None
    explosion: float = 1e3


def legacy_bits(sent: Tensor) -> int:
    """S0's count, the sum of ceil(log2(p + 1)) over the values 2^-p that were sent: no sign, no position, no scale."""
    powers = -sent[sent != 0].abs().log2().round().clamp(max=0)
    return sum(math.ceil(math.log2(p + 1)) for p in powers.tolist())


@dataclass
class Trace:
    """What a descent leaves: relative gradient norms, legacy bits and payload bytes before each message, and after all.

    `seconds` are measured with a clock and are no part of what two equal runs share.
    """

    norms: list[float]
    bits: list[int]
    payload_bytes: list[int]
    reached: bool = False
    seconds: float = 0.0
    solver_seconds: float = 0.0

    @property
    def iterations(self) -> int:
        """The number of the last message, counted from 0 as S0 does."""
        return len(self.norms) - 2

    def figures(self) -> dict[str, Any]:
        """The end of it, without any clock."""
        return {
            "reached": self.reached, "iterations": self.iterations, "norm": self.norms[-1],
            "legacy_bits": self.bits[-1], "payload_bytes": self.payload_bytes[-1],
        }  # fmt: skip

    def thinned(self, most: int = 200) -> dict[str, list[Any]]:
        """The curves in at most about so many points, the last one among them."""
        every = max(1, len(self.norms) // most)
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
    stop: Stop,
    solver: ImportanceSolver | None = None,
    judge: Problem | None = None,
    tell: Tell = lambda done: None,
) -> Trace:
    """Descend with a fixed step along what the composition lets through.

    A solver finds w before each message, or as often as it says, asking `judge` for gradients: a quicker form of the
    problem, if there is one.
    Legacy bits count what was sent, so they mean something only for values that are powers of two.
    """
    spec = TensorSpec(LAYER, tuple(start.shape), start.dtype)
    meter, trace = Meter(keep_steps=1), Trace([], [], [])
    exchanger = Exchanger([spec], parse(composition))
    refresher = None if solver is None else Refresher(solver, exchanger.importance)
    objective = GradientOnly(judge or problem)

    def program() -> Program[None]:
        weights, bits = start, 0
        gradient = problem.gradient(weights)
        first = float(gradient.norm())

        def look() -> float:
            trace.norms.append(float(gradient.norm()) / first)
            trace.bits.append(bits)
            trace.payload_bytes.append(int(meter.total().payload_bytes))
            return trace.norms[-1]

        look()
        for message in range(stop.messages):
            if refresher is not None and refresher.is_due(message):
                yield from refresher.refresh(objective, {LAYER: weights}, {LAYER: gradient}, step_size)
            agreed = yield from exchanger.run_step({LAYER: gradient}, message, World(0, 1))
            bits += legacy_bits(agreed[LAYER])
            weights = weights - step_size * agreed[LAYER]
            gradient = problem.gradient(weights)
            norm = look()
            tell(message + 1)
            trace.reached = norm <= stop.tolerance
            if trace.reached or not norm <= stop.explosion or (stop.bits is not None and bits >= stop.bits):
                return

    begun = time.perf_counter()
    lockstep([program()], [meter])
    trace.seconds = time.perf_counter() - begun
    trace.solver_seconds = 0.0 if refresher is None else refresher.solve_s
    return trace
