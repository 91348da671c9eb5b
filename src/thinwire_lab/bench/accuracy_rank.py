"""One rank of `thinwire bench accuracy`: train under DDP, stop the clock for evaluations.

The clock counts everything of a step (batch, forward, backward, communication, optimizer). It stops between two
barriers for an evaluation, which only rank 0 computes. After training, some steps under `no_sync` give the time of a
step without communication.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from thinwire.drivers.torch_dist import TorchDist

from ..running.optimizers import learning_rate_at, make_optimizer
from ..tasks import make_task
from ..tasks.modules import ModuleLearner, mean_loss
from ..tasks.splits import Split
from ..testbed.counters import read_counts
from .accuracy import AccuracyTask
from .ddp_methods import DDPMethod, wrap_in_ddp

COMPUTE_STEPS = 20


class TimedTraining:
    """A model under DDP with its optimizer; `run` returns the seconds and the bytes sent of some steps."""

    def __init__(self, learner: ModuleLearner, task: AccuracyTask, method: DDPMethod, device: str) -> None:
        self.learner, self.task, self.device = learner, task, device
        self.model: DistributedDataParallel
        self.model, self._handle = wrap_in_ddp(learner.model, method)
        self.optimizer = make_optimizer(task.optimizer, list(learner.parameters.values()), float(task.optimizer.lr))

    def run(self, first: int, last: int) -> tuple[float, int]:
        """Steps first to last, between two barriers."""
        dist.barrier()
        before, began = read_counts(self.device), time.perf_counter()
        for step in range(first, last):
            self.take_step(step)
        dist.barrier()
        return time.perf_counter() - began, read_counts(self.device).since(before).sent_bytes

    def take_step(self, step: int) -> None:
        settings = self.task.optimizer
        lr = learning_rate_at(step, self.task.steps, float(settings.lr), settings.schedule, settings.warmup_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.model.train()  # type: ignore[no-untyped-call]
        self.optimizer.zero_grad()
        mean_loss(self.model, self.learner.batch(step)).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def time_compute(self) -> float:
        """Mean seconds of a step that sends nothing. Changes the weights: only after the last evaluation."""
        with self.model.no_sync():
            self.take_step(self.task.steps)  # the first one may still broadcast the buffers
            dist.barrier()
            began = time.perf_counter()
            for step in range(COMPUTE_STEPS):
                self.take_step(self.task.steps + 1 + step)
            return (time.perf_counter() - began) / COMPUTE_STEPS


def run_rank(driver: TorchDist, order: dict[str, Any], on_progress: Callable[[Any], None]) -> dict[str, Any]:
    """The curve of one rank: evaluations, and seconds and bytes since the evaluation before."""
    torch.set_num_threads(1)
    task, world = AccuracyTask.from_json(order["settings"]), driver.world
    made = make_task(task.task, task.settings, order["data"])
    learner = made.learner(world.rank, world.size, Split.parse("iid"), order["seed"])
    assert isinstance(learner, ModuleLearner)
    training = TimedTraining(learner, task, DDPMethod(**order["method"]), order["device"])
    steps = [*range(0, task.steps, task.every), task.steps]
    seconds, sent, evaluated = [0.0], [0], [_evaluate(learner, world.rank)]
    for first, last in pairwise(steps):
        spent, sent_bytes = training.run(first, last)
        seconds.append(spent)
        sent.append(sent_bytes)
        evaluated.append(_evaluate(learner, world.rank))
        on_progress(f"step {last} of {steps[-1]}, {sum(seconds):.0f} s, {_describe(evaluated[-1])}")
    curve = {"step": steps} | {key: [found[key] for found in evaluated] for key in evaluated[0]}
    return {
        "curve": curve, "seconds": seconds, "sent_bytes": sent, "compute_s": training.time_compute(),
        "facts": made.describe(),
    }  # fmt: skip


def _evaluate(learner: ModuleLearner, rank: int) -> dict[str, float]:
    return learner.measure() if rank == 0 else {}


def _describe(figures: dict[str, float]) -> str:
    return ", ".join(f"{key} {value:.4g}" for key, value in figures.items())
