"""One run of an experiment: the same training loop for all workers in one process and for one worker in each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import checkpoint
from ..catalog import parse
from ..core import Broadcast, Label, Payload, Program, TensorSpec, World
from ..drivers.lockstep import lockstep
from ..drivers.meter import Meter
from ..drivers.torch_dist import TorchDist
from ..exchange import Exchanger
from ..importance import Refresher
from .clock import Clock, chrome_trace, waiting_and_sending
from .config import Experiment, Group, Method, rate
from .folder import write_json
from .observing import Observer, Watch
from .optimizers import make_optimizer, rate_at
from .tasks import make_task
from .tasks.base import Learner, Task
from .tasks.splits import Split

Carry = Callable[[Sequence[Program[Any]]], Sequence[Any]]
EXPLOSION = 1e12  # weights beyond this will not come back, and overflow soon


class Worker:
    """One rank's training: its learner, optimizer, exchanger and clock. A step is a program for any driver."""

    def __init__(
        self, experiment: Experiment, task: Task, group: Group, method: Method, seed: int, rank: int, meter: Meter
    ) -> None:
        self.world, self.meter = World(rank, group.workers), meter
        self.learner: Learner = task.learner(rank, group.workers, Split.parse(group.split), seed)
        parameters = self.learner.parameters
        settings = experiment.optimizer
        self.lr = rate(method.lr or settings.lr, task.smoothness)
        self.optimizer = make_optimizer(settings, list(parameters.values()), self.lr)
        layers = [TensorSpec(name, tuple(p.shape), p.dtype) for name, p in parameters.items()]
        self.watch = Watch()
        self.exchanger = Exchanger(layers, parse(method.composition), self.watch, seed=seed)
        self.buckets = buckets(layers, experiment.bucket_mb)
        solver = method.solver()
        self.refresher = None if solver is None else Refresher(solver, self.exchanger.importance)
        self.clock = Clock(experiment.trace_steps if group.driver == "processes" else 0)
        self.loss, self.gradient_norm = math.nan, math.nan

    def step(self, step: int, lr: float, watched: bool) -> Program[None]:
        self.clock.step = step
        with self.clock.timing("compute"):
            self.loss, gradients = self.learner.gradients(step)
        if self.refresher is not None and self.refresher.due(step):
            point = {name: p.detach() for name, p in self.learner.parameters.items()}
            program = self.refresher.refresh(self.learner.objective(step), point, gradients, lr, step, self.world)
            yield from self.clock.timed(program, "solver")
        self.watch.look_at(self.exchanger.targets(gradients) if watched else {})
        averages = yield from self._exchange(gradients, step)
        with self.clock.timing("compute"):
            self._apply(averages, lr, watched)

    def _exchange(self, gradients: Mapping[str, Tensor], step: int) -> Program[dict[str, Tensor]]:
        yield from self.clock.timed(self.exchanger.begin(step, self.world))
        averages: dict[str, Tensor] = {}
        for at, names in enumerate(self.buckets):
            bucket = {name: gradients[name] for name in names}
            averages |= yield from self.clock.timed(self.exchanger.exchange(bucket, step, self.world), bucket=at)
        with self.clock.timing("encode"):
            good = self.exchanger.settle()
        return averages if good else {}

    def _apply(self, averages: Mapping[str, Tensor], lr: float, watched: bool) -> None:
        """Nothing happens to weights or moments in a step that some rank's NaN has spoiled."""
        if not averages:
            return
        if watched:
            self.gradient_norm = math.sqrt(sum(float(g.double().square().sum()) for g in averages.values()))
        for name, parameter in self.learner.parameters.items():
            parameter.grad = averages[name].to(parameter.dtype).view(parameter.shape)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()

    @property
    def exploded(self) -> bool:
        return not all(bool(p.detach().abs().amax() < EXPLOSION) for p in self.learner.parameters.values() if p.numel())

    def state_dict(self) -> dict[str, Any]:
        weights = {name: p.detach() for name, p in self.learner.parameters.items()}
        return {
            "weights": weights, "optimizer": self.optimizer.state_dict(), "exchanger": self.exchanger.state_dict(),
            "learner": self.learner.state_dict(), "meter": self.meter.state_dict(), "sums": self.clock.sums,
            "requests": [list(pair) for pair in self.clock.requests], "gradient_norm": self.gradient_norm,
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with torch.no_grad():
            for name, parameter in self.learner.parameters.items():
                parameter.copy_(state["weights"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.exchanger.load_state_dict(state["exchanger"])
        self.learner.load_state_dict(state["learner"])
        self.meter.load_state_dict(state["meter"])
        self.clock.sums = dict(state["sums"])
        self.clock.requests = [(asked, answered) for asked, answered in state["requests"]]
        self.gradient_norm = state["gradient_norm"]


def buckets(layers: Sequence[TensorSpec], most_mb: float) -> list[list[str]]:
    """Names of layers that are exchanged together, from the last layer to the first as gradients come."""
    found: list[list[str]] = []
    size = math.inf
    for layer in reversed(layers):
        nbytes = layer.numel * layer.dtype.itemsize
        if size + nbytes > 1e6 * most_mb:
            found.append([])
            size = 0.0
        found[-1].append(layer.name)
        size += nbytes
    return found


class Training:
    """Workers of this process (all of them in lockstep, or one), trained step by step, observed, stored and resumed."""

    def __init__(
        self, argument: Mapping[str, Any], workers_here: Sequence[int], meters: Sequence[Meter], carry: Carry
    ) -> None:
        self.experiment = Experiment.from_dict(argument["experiment"])
        self.group = self.experiment.groups[argument["group"]]
        method = next(m for m in self.experiment.methods if m.label == argument["label"])
        task = make_task(self.experiment.task.name, self.experiment.task.settings, argument["data"])
        self.steps = argument["steps"]
        self.workers = [
            Worker(self.experiment, task, self.group, method, argument["seed"], rank, meter)
            for rank, meter in zip(workers_here, meters, strict=True)
        ]
        self.carry = carry
        self.observer = Observer(self.workers[0], self.experiment.target) if 0 in workers_here else None
        self.folder = Path(argument["folder"]) / "checkpoint"
        self.done = 0

    def run(self, tell: Callable[[Any], None], barrier: Callable[[], object] | None = None) -> None:
        self._resume()
        settings, over = self.experiment.optimizer, False
        while self.done < self.steps and not over:
            step = self.done
            watched = step % self.experiment.record_every == 0
            if watched:
                over = self._look(step, tell)
                if over:
                    break
            lr = rate_at(step, self.steps, self.workers[0].lr, settings.schedule, settings.warmup_steps)
            self.carry([worker.step(step, lr, watched) for worker in self.workers])
            self.done += 1
            if watched and self.observer is not None:
                self.observer.look_back()
            if self.done % self.experiment.checkpoint_every == 0 and self.done < self.steps:
                self._save(barrier)
        if self.observer is not None and not over:
            self.observer.look(self.done)
            tell(self.observer.news(self.done, self.steps))

    def _look(self, step: int, tell: Callable[[Any], None]) -> bool:
        """Measure; True if the run ends here, which all ranks know alike."""
        if self.observer is not None:
            self.observer.look(step)
            tell(self.observer.news(step, self.steps))
        target = self.experiment.target
        if target is not None and target.stop:
            reached = self.observer is not None and self.observer.reached
            flags = self.carry([_from_rank_0(reached, step) for _ in self.workers])
            if flags[0]:
                return True
        return self.workers[0].exploded  # all ranks hold the same weights

    def _save(self, barrier: Callable[[], object] | None) -> None:
        state = {str(w.world.rank): w.state_dict() for w in self.workers} | {"done": self.done}
        if self.observer is not None:
            state["observer"] = self.observer.state_dict()
        rank, size = self.workers[0].world if barrier is not None else World(0, 1)
        checkpoint.save(self.folder, state, step=self.done, rank=rank, world_size=size, barrier=barrier)

    def _resume(self) -> None:
        if not checkpoint.steps(self.folder):
            return
        rank, size = self.workers[0].world if len(self.workers) == 1 else World(0, 1)
        state = checkpoint.load(self.folder, rank=rank, world_size=size)
        for worker in self.workers:
            worker.load_state_dict(state[str(worker.world.rank)])
        self.done = int(state["done"])
        if self.observer is not None:
            self.observer.load_state_dict(state["observer"])


def _from_rank_0(flag: bool, step: int) -> Program[bool]:
    told = yield Broadcast(Payload((torch.tensor([flag]),)), 0, (Label("", "control", 1, 1.0),), step)
    return bool(told.parts[0].item())


def in_lockstep(driver: TorchDist, argument: Mapping[str, Any], tell: Callable[[Any], None]) -> dict[str, Any]:
    """All workers in this process. Rank 0's bytes; times are those of computing and encoding, for one worker."""
    del driver  # a world of one
    size = Experiment.from_dict(argument["experiment"]).groups[argument["group"]].workers
    meters = [Meter() for _ in range(size)]
    training = Training(argument, range(size), meters, lambda programs: lockstep(programs, meters))
    training.run(tell)
    assert training.observer is not None
    return _head(argument, training) | training.observer.result() | {"times": dict(training.workers[0].clock.sums)}


def on_one_rank(driver: TorchDist, argument: Mapping[str, Any], tell: Callable[[Any], None]) -> dict[str, Any]:
    """One of several processes; `together` makes one result of theirs."""
    training = Training(argument, [driver.world.rank], [driver.meter], lambda programs: [driver.run(programs[0])])
    training.run(tell, driver.barrier)
    clock = training.workers[0].clock.to_dict() | {"folder": argument["folder"]}
    result = {} if training.observer is None else _head(argument, training) | training.observer.result()
    return result | {"clock": clock}


def together(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Rank 0's result with all ranks' times; the last steps' trace goes to a file beside it."""
    clocks = [result["clock"] for result in results]
    names = dict.fromkeys(name for clock in clocks for name in clock["sums"])
    times = {name: sum(clock["sums"].get(name, 0.0) for clock in clocks) / len(clocks) for name in names}
    requests = [clock["requests"] for clock in clocks]
    waiting, sending = waiting_and_sending(requests)
    result = {key: value for key, value in results[0].items() if key != "clock"}
    folder = Path(clocks[0]["folder"])
    write_json(folder / "trace.json", chrome_trace([clock["spans"] for clock in clocks], requests))
    trace = f"jobs/{folder.name}/trace.json"
    return result | {"times": times | {"communication": sending, "waiting": waiting}, "trace": trace}


def _head(argument: Mapping[str, Any], training: Training) -> dict[str, Any]:
    group = asdict(training.group)
    method = next(m for m in training.experiment.methods if m.label == argument["label"])
    return {
        "group": group["title"], "workers": group["workers"], "driver": group["driver"], "link": group["link"],
        "split": group["split"], "label": method.label, "composition": method.composition, "seed": argument["seed"],
        "steps": training.done,
    }  # fmt: skip
