"""`thinwire bench overhead`: CPU time of Python and of small calls in an exchange, for each layer and for each step.

Layers are so small that kernels take no time. CPU time of a step of 60 layers in one exchange minus that of a step of
one layer, divided by 59, is the time per layer; the time of a step of one layer minus that is the time per step. All
threads of a process count. Two ranks, in lockstep in one process and over `TorchDist` in two processes; figures are of
one rank. In lockstep, ranks share the decoding of an average, so processes have the figure that a training pays.
Function calls are those that Python's profiler counts in lockstep.
"""

from __future__ import annotations

import cProfile
import pstats
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from thinwire.catalog import parse
from thinwire.core import TensorSpec, World
from thinwire.drivers.lockstep import lockstep
from thinwire.drivers.processes import run_ranks
from thinwire.drivers.torch_dist import TorchDist
from thinwire.exchange import Exchanger

COMPOSITIONS = (
    "dense()", "ef(topk(density=0.01))", "ef(qsgd(bits=4))", "ef(sign())", "ef(uniform(bits=4))", "ef(natural())",
    "ef(powersgd(rank=1))",
)  # fmt: skip
LAYERS, SIDE, RANKS = 60, 16, 2
_WARMUP_STEPS = 3
_BLOCKS = 5  # of steps; the median of their times counts
OnProgress = Callable[[str], None]
RunSteps = Callable[[int], None]


@dataclass(frozen=True)
class Cost:
    """A figure of one rank, split into that of each layer and that of each step."""

    layer: float
    step: float


@dataclass(frozen=True)
class OverheadRow:
    """Milliseconds of CPU time and function calls of one rank."""

    composition: str
    lockstep_ms: Cost
    processes_ms: Cost | None  # None: not measured
    calls: Cost


def split_cost(many: float, one: float, layers: int = LAYERS) -> Cost:
    """The cost of a layer and of a step, from the figures of a step with many layers and of a step with one layer."""
    layer = (many - one) / (layers - 1)
    return Cost(layer, one - layer)


class SmallLayers:
    """Exchangers of some ranks, and constant gradients of small layers."""

    def __init__(self, composition: str, layers: int, ranks: Sequence[int] = range(RANKS)) -> None:
        specs = [TensorSpec(f"layer{i}", (SIDE, SIDE)) for i in range(layers)]
        self.exchangers = {rank: Exchanger(specs, parse(composition)) for rank in ranks}
        numbers = torch.Generator().manual_seed(0)
        self.gradients = {spec.name: torch.randn(spec.shape, generator=numbers) for spec in specs}
        self.step = 0

    def run_in_lockstep(self, steps: int) -> None:
        for _ in range(steps):
            ranks = self.exchangers.items()
            lockstep([each.run_step(self.gradients, self.step, World(rank, RANKS)) for rank, each in ranks])
            self.step += 1

    def run_on(self, driver: TorchDist, steps: int) -> None:
        """Programs run on the communication thread, as those of DDP's hook do."""
        exchanger = self.exchangers[driver.world.rank]
        for _ in range(steps):
            driver.submit(exchanger.run_step(self.gradients, self.step, driver.world)).result()
            self.step += 1


def time_steps(many: RunSteps, one: RunSteps, steps: int) -> tuple[float, float]:
    """CPU milliseconds of a step of both: medians of blocks of `steps` steps, taken in turns."""
    for run in (many, one):
        run(_WARMUP_STEPS)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(_BLOCKS):
        for run, found in zip((many, one), times, strict=True):
            began = time.process_time()
            run(steps)
            found.append(1e3 * (time.process_time() - began) / steps)
    return statistics.median(times[0]), statistics.median(times[1])


def count_calls(run: RunSteps, steps: int = 5) -> float:
    """Function calls of a step."""
    profile = cProfile.Profile()
    profile.runcall(run, steps)
    return float(pstats.Stats(profile).total_calls) / steps  # type: ignore[attr-defined]


def measure_lockstep(composition: str, steps: int) -> tuple[Cost, Cost]:
    """Milliseconds and calls of one rank."""
    many, one = (SmallLayers(composition, layers).run_in_lockstep for layers in (LAYERS, 1))
    many_ms, one_ms = time_steps(many, one, steps)
    calls = split_cost(count_calls(many) / RANKS, count_calls(one) / RANKS)
    return split_cost(many_ms / RANKS, one_ms / RANKS), calls


def measure_rank(driver: TorchDist, order: dict[str, Any], report: Callable[[Any], None]) -> list[tuple[float, float]]:
    """One process: milliseconds of a step of many layers and of one layer, by composition."""
    found = []
    with TorchDist() as unordered:  # as `attach` makes it
        for composition in order["compositions"]:
            report(f"two processes: {composition}")
            cases = [SmallLayers(composition, layers, [driver.world.rank]) for layers in (LAYERS, 1)]
            many, one = (lambda steps, case=case: case.run_on(unordered, steps) for case in cases)
            found.append(time_steps(many, one, order["steps"]))
    return found


def measure(
    steps: int, compositions: Sequence[str] = COMPOSITIONS, processes: bool = True, on_progress: OnProgress = print
) -> list[OverheadRow]:
    """One row per composition.

    Args:
        steps: steps of each block of steps that is timed.
        compositions: their texts.
        processes: also measure two processes over `TorchDist`.
        on_progress: receives progress.
    """
    torch.set_num_threads(1)
    in_processes: list[Cost | None] = [None] * len(compositions)
    if processes:
        order = {"compositions": list(compositions), "steps": steps}
        ranks = run_ranks(RANKS, "thinwire_lab.bench.overhead:measure_rank", order, on_progress=on_progress)
        for at, times in enumerate(zip(*ranks, strict=True)):
            many_ms, one_ms = (statistics.mean(ms) for ms in zip(*times, strict=True))
            in_processes[at] = split_cost(many_ms, one_ms)
    rows = []
    for composition, cost in zip(compositions, in_processes, strict=True):
        on_progress(f"lockstep: {composition}")
        lockstep_ms, calls = measure_lockstep(composition, steps)
        rows.append(OverheadRow(composition, lockstep_ms, cost, calls))
    return rows
