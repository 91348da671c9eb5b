"""One training replica: its model, optimizer, exchanger and clock. A step is a program that any driver can run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from thinwire.catalog.patterns import assign_composition
from thinwire.core import Program, TensorSpec, World, topology_of
from thinwire.drivers.meter import Meter
from thinwire.exchange import Exchanger
from thinwire.importance import Refresher
from thinwire.optimizer_state import AdamMoments, MomentsAveraging
from thinwire.sync import LocalRounds, mean_and_consensus

from ..configuration.config import Experiment, Method, RunGroup
from ..configuration.learning_rates import resolve_learning_rate
from ..measuring.clock import Clock, now
from ..measuring.metrics import BUFFER_PREFIX, ErrorRecorder
from ..tasks.base import Learner, Task
from ..tasks.splits import Split
from .optimizers import make_optimizer

MAX_WEIGHT = 1e12  # larger weights count as diverged


class Replica:
    """One rank's learner, optimizer, exchanger and clock.

    Args:
        experiment, task, group, method, seed: what is trained.
        rank: of this replica.
        meter: counts the bytes of training.
        log: file for the times of requests; None: they are not stored.
    """

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
        self.error_recorder = ErrorRecorder()
        sync = method.sync()
        rules = dict.fromkeys(parameters, sync.composition)
        if experiment.dense_below:
            rules = assign_composition(layers, sync.composition, experiment.dense_below)
        self.rounds: LocalRounds | None = None
        if sync.payload == "gradients" and not sync.full_average_every:
            self.exchanger = Exchanger(layers, rules, seed=seed)
        else:
            before_exchange = self._set_round_targets if rank == 0 else None
            self.rounds = LocalRounds(sync, parameters, rules, seed=seed, before_exchange=before_exchange)
            self.exchanger = self.rounds.exchanger
        self.exchanger.set_layer_callback(self.error_recorder.record)
        self.exchanger.set_clock(now if group.driver == "processes" else None)  # lockstep runs are deterministic
        moments = method.moments_config()
        self.averaging: MomentsAveraging | None = None
        if moments is not None:
            self.averaging = MomentsAveraging(AdamMoments(self.optimizer, parameters), moments, seed=seed)
        self.replicas_differ = self.rounds is not None or topology_of(sync.composition) is not None
        self.buckets = make_buckets(layers, experiment.bucket_mb)
        solver = method.solver()
        self.refresher = None if solver is None else Refresher(solver, self.exchanger.importance)
        self.clock = Clock(experiment.trace_steps if group.driver == "processes" else 0, log)
        self.loss, self.gradient_norm = math.nan, math.nan

    def _set_round_targets(self, tensors: Mapping[str, Tensor]) -> None:
        self.error_recorder.set_round_targets(self.exchanger.targets(tensors, self.world))

    def step(self, step: int, lr: float, measured: bool) -> Program[None]:
        """One step of training; `measured`: record the gradient norm and the compression errors of the layers."""
        self.clock.step = step
        with self.clock.timing("compute"):
            self.loss, gradients = self.learner.gradients(step)
        if self.rounds is not None:
            yield from self._local_step(self.rounds, gradients, step, lr, measured)
            return
        if self.refresher is not None and self.refresher.is_due(step):
            point = {name: p.detach() for name, p in self.learner.parameters.items()}
            program = self.refresher.refresh(self.learner.objective(step), point, gradients, lr, step, self.world)
            yield from self.clock.time_program(program, "solver")
        self.error_recorder.set_targets(self.exchanger.targets(gradients, self.world) if measured else {})
        averages = yield from self._exchange(gradients, step, lr)
        with self.clock.timing("compute"):
            self._apply(averages, lr, measured)

    def _local_step(
        self, rounds: LocalRounds, gradients: Mapping[str, Tensor], step: int, lr: float, measured: bool
    ) -> Program[None]:
        """A local step, and a round if one is due. Communication does not overlap with computation here."""
        if rounds.settings.payload == "gradients":
            gradients = yield from self.clock.time_program(rounds.average_gradients(gradients, step, self.world, lr))
        with self.clock.timing("compute"):
            merged = rounds.before_step(step)
            self._apply(gradients, lr, measured)
        merged += yield from self.clock.time_program(rounds.after_step(step, self.world, lr))
        if any(one.rolled_back for one in merged):
            self.optimizer.state.clear()  # the moments contain NaN
        for one in merged if self.averaging is not None else ():
            if one.good and self.averaging is not None:
                yield from self.clock.time_program(self.averaging.average(self.world, one.names), "moments")

    def average_weights(self, step: int) -> Program[tuple[dict[str, Tensor], float]]:
        """The mean of all ranks' weights and buffers and the consensus distance; for measuring, not for training."""
        mean, consensus = yield from mean_and_consensus(self.learner.parameters, self.world, step)
        floats = {n: t for n, t in self.learner.state_dict().items() if isinstance(t, Tensor) and t.is_floating_point()}
        if floats:
            buffers, _ = yield from mean_and_consensus(floats, self.world, step)
            mean |= {f"{BUFFER_PREFIX}{name}": tensor for name, tensor in buffers.items()}
        return mean, consensus

    def _exchange(self, gradients: Mapping[str, Tensor], step: int, lr: float) -> Program[dict[str, Tensor]]:
        yield from self.clock.time_program(self.exchanger.begin(step, self.world, lr))
        averages: dict[str, Tensor] = {}
        for at, names in enumerate(self.buckets):
            bucket = {name: gradients[name] for name in names}
            averages |= yield from self.clock.time_program(self.exchanger.exchange(bucket, step, self.world), bucket=at)
        with self.clock.timing("encode"):
            good = self.exchanger.settle()
        return averages if good else {}

    def _apply(self, averages: Mapping[str, Tensor], lr: float, measured: bool) -> None:
        """Step the optimizer, unless the step was discarded because some rank had a NaN (no averages)."""
        if not averages:
            return
        if measured:
            self.gradient_norm = math.sqrt(sum(float(g.double().square().sum()) for g in averages.values()))
        for name, parameter in self.learner.parameters.items():
            parameter.grad = averages[name].to(parameter.dtype).view(parameter.shape)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()

    @property
    def has_diverged(self) -> bool:
        return not all(
            bool(p.detach().abs().amax() < MAX_WEIGHT) for p in self.learner.parameters.values() if p.numel()
        )

    def state_dict(self) -> dict[str, Any]:
        weights = {name: p.detach() for name, p in self.learner.parameters.items()}
        return {
            "weights": weights, "optimizer": self.optimizer.state_dict(),
            **{name: part.state_dict() for name, part in self._stateful_parts().items()},
            "learner": self.learner.state_dict(), "meter": self.meter.state_dict(), **self.clock.state_dict(),
            "gradient_norm": self.gradient_norm, "adapting_s": self.exchanger.adapting_s,
            "errors": dict(self.error_recorder.errors),  # of the last round; a later measurement reports them
        }  # fmt: skip

    def _stateful_parts(self) -> dict[str, Any]:
        """Parts with a state of their own, by the key under which it is stored."""
        parts = {"exchanger": self.exchanger if self.rounds is None else None, "rounds": self.rounds}
        return {name: part for name, part in (*parts.items(), ("averaging", self.averaging)) if part is not None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with torch.no_grad():
            for name, parameter in self.learner.parameters.items():
                parameter.copy_(state["weights"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        for name, part in self._stateful_parts().items():
            part.load_state_dict(state[name])
        self.learner.load_state_dict(state["learner"])
        self.meter.load_state_dict(state["meter"])
        self.clock.load_state_dict(state)
        self.gradient_norm = state["gradient_norm"]
        self.error_recorder.errors = dict(state.get("errors", {}))
        self.exchanger.set_adapting_s(float(state.get("adapting_s", 0.0)))


def make_buckets(layers: Sequence[TensorSpec], max_mb: float) -> list[list[str]]:
    """Names of layers that are exchanged together, from the last layer to the first, as backward computes them."""
    buckets: list[list[str]] = []
    size = math.inf
    for layer in reversed(layers):
        num_bytes = layer.numel * layer.dtype.itemsize
        if size + num_bytes > 1e6 * max_mb:
            buckets.append([])
            size = 0.0
        buckets[-1].append(layer.name)
        size += num_bytes
    return buckets
