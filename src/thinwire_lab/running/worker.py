"""One rank of a run: its model, optimizer, exchange and clock. A step is a program for any driver."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from thinwire.catalog.patterns import assigned
from thinwire.core import Program, TensorSpec, World, topology_of
from thinwire.drivers.meter import Meter
from thinwire.exchange import Exchanger
from thinwire.importance import Refresher
from thinwire.optimizer_state import AdamMoments, Averaging
from thinwire.sync import Rounds, mean_and_consensus

from ..configuration.config import Experiment, Method, RunGroup
from ..configuration.learning_rates import resolve_learning_rate
from ..measuring.clock import Clock, now
from ..measuring.metrics import BUFFER, Watch
from ..tasks.base import Learner, Task
from ..tasks.splits import Split
from .optimizers import make_optimizer

EXPLOSION = 1e12  # weights beyond this will not come back, and overflow soon


class Worker:
    """One rank's training: its learner, optimizer, exchanger and clock. A step is a program for any driver."""

    def __init__(
        self,
        experiment: Experiment,
        task: Task,
        group: RunGroup,
        method: Method,
        seed: int,
        rank: int,
        meter: Meter,
        log: Path | None = None,
    ) -> None:
        self.world, self.meter = World(rank, group.workers), meter
        self.learner: Learner = task.learner(rank, group.workers, Split.parse(group.split), seed)
        parameters = self.learner.parameters
        settings = experiment.optimizer_of(group)
        self.lr = resolve_learning_rate(method.lr or settings.lr, task.smoothness)
        self.optimizer = make_optimizer(settings, list(parameters.values()), self.lr)
        layers = [TensorSpec(name, tuple(p.shape), p.dtype) for name, p in parameters.items()]
        self.watch = Watch()
        sync = method.sync()
        rules = dict.fromkeys(parameters, sync.exchange)
        if experiment.small:
            rules = assigned(layers, sync.exchange, experiment.small)
        self.rounds: Rounds | None = None
        if sync.payload == "gradients" and not sync.average_every:
            self.exchanger = Exchanger(layers, rules, seed=seed)
        else:
            look_on = self._look_on if rank == 0 else None
            self.rounds = Rounds(sync, parameters, rules, seed=seed, before_exchange=look_on)
            self.exchanger = self.rounds.exchanger
        self.exchanger.set_watch(self.watch.see)
        self.exchanger.set_clock(now if group.driver == "processes" else None)  # in lockstep runs must repeat
        moments = method.averaged()
        self.averaging: Averaging | None = None
        if moments is not None:
            self.averaging = Averaging(AdamMoments(self.optimizer, parameters), moments, seed=seed)
        self.replicas_differ = self.rounds is not None or topology_of(sync.exchange) is not None
        self.buckets = buckets(layers, experiment.bucket_mb)
        solver = method.solver()
        self.refresher = None if solver is None else Refresher(solver, self.exchanger.importance)
        self.clock = Clock(experiment.trace_steps if group.driver == "processes" else 0, log)
        self.loss, self.gradient_norm = math.nan, math.nan

    def _look_on(self, given: Mapping[str, Tensor]) -> None:
        self.watch.look_on(self.exchanger.targets(given, self.world))

    def step(self, step: int, lr: float, watched: bool) -> Program[None]:
        self.clock.step = step
        with self.clock.timing("compute"):
            self.loss, gradients = self.learner.gradients(step)
        if self.rounds is not None:
            yield from self._local_step(self.rounds, gradients, step, lr, watched)
            return
        if self.refresher is not None and self.refresher.due(step):
            point = {name: p.detach() for name, p in self.learner.parameters.items()}
            program = self.refresher.refresh(self.learner.objective(step), point, gradients, lr, step, self.world)
            yield from self.clock.timed(program, "solver")
        self.watch.look_at(self.exchanger.targets(gradients, self.world) if watched else {})
        averages = yield from self._exchange(gradients, step, lr)
        with self.clock.timing("compute"):
            self._apply(averages, lr, watched)

    def _local_step(
        self, rounds: Rounds, gradients: Mapping[str, Tensor], step: int, lr: float, watched: bool
    ) -> Program[None]:
        """The worker's own step, and a round if one is due. What travels is not hidden behind computing here."""
        if rounds.settings.payload == "gradients":
            gradients = yield from self.clock.timed(rounds.average_gradients(gradients, step, self.world, lr))
        with self.clock.timing("compute"):
            merged = rounds.before_step(step)
            self._apply(gradients, lr, watched)
        merged += yield from self.clock.timed(rounds.after_step(step, self.world, lr))
        if any(one.went_back for one in merged):
            self.optimizer.state.clear()  # moments were made of what is no number
        for one in merged if self.averaging is not None else ():
            if one.good and self.averaging is not None:
                yield from self.clock.timed(self.averaging.average(self.world, one.names), "moments")

    def shown(self, step: int) -> Program[tuple[dict[str, Tensor], float]]:
        """The mean of all ranks' weights and buffers, and how far weights are apart; for looking, not for training."""
        mean, apart = yield from mean_and_consensus(self.learner.parameters, self.world, step)
        floats = {n: t for n, t in self.learner.state_dict().items() if isinstance(t, Tensor) and t.is_floating_point()}
        if floats:
            buffers, _ = yield from mean_and_consensus(floats, self.world, step)
            mean |= {f"{BUFFER}{name}": tensor for name, tensor in buffers.items()}
        return mean, apart

    def _exchange(self, gradients: Mapping[str, Tensor], step: int, lr: float) -> Program[dict[str, Tensor]]:
        yield from self.clock.timed(self.exchanger.begin(step, self.world, lr))
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
            "weights": weights, "optimizer": self.optimizer.state_dict(),
            **{name: part.state_dict() for name, part in self._memories().items()},
            "learner": self.learner.state_dict(), "meter": self.meter.state_dict(), **self.clock.state_dict(),
            "gradient_norm": self.gradient_norm, "adapting_s": self.exchanger.adapting_s,
            "errors": dict(self.watch.errors),  # of the last round, which a later look shows
        }  # fmt: skip

    def _memories(self) -> dict[str, Any]:
        """What keeps a state of its own between steps."""
        parts = {"exchanger": self.exchanger if self.rounds is None else None, "rounds": self.rounds}
        return {name: part for name, part in (*parts.items(), ("averaging", self.averaging)) if part is not None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with torch.no_grad():
            for name, parameter in self.learner.parameters.items():
                parameter.copy_(state["weights"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        for name, part in self._memories().items():
            part.load_state_dict(state[name])
        self.learner.load_state_dict(state["learner"])
        self.meter.load_state_dict(state["meter"])
        self.clock.load_state_dict(state)
        self.gradient_norm = state["gradient_norm"]
        self.watch.errors = dict(state.get("errors", {}))
        self.exchanger.set_adapting_s(float(state.get("adapting_s", 0.0)))


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
