"""The training loop of one run: for all replicas in one process (lockstep) or for one replica per process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from thinwire import checkpoint
from thinwire.core import Broadcast, Label, Payload, Program, World
from thinwire.drivers.driver import Driver
from thinwire.drivers.lockstep import lockstep
from thinwire.drivers.meter import Meter

from ..configuration.config import Experiment
from ..measuring.clock import make_chrome_trace, split_waiting_and_sending
from ..measuring.folder import TIMES_FOLDER, write_json
from ..measuring.metrics import MetricsRecorder
from ..measuring.request_log import read_requests
from ..tasks import make_task
from .optimizers import learning_rate_at
from .replica import Replica

RunPrograms = Callable[[Sequence[Program[Any]]], Sequence[Any]]  # one program per replica of this process -> answers


class Training:
    """Trains the replicas of this process (all of them in lockstep, or one); measures, checkpoints and resumes.

    Args:
        argument: of the job: experiment, group, label, seed, steps, data and folder.
        ranks_here: ranks of the replicas in this process.
        meters: one per replica, for the bytes of training.
        run_programs: runs one program per replica with the training meters.
        run_measurements: the same with a meter of its own, so that measuring is not counted as training.
        measurement_meter: that meter.
    """

    def __init__(
        self,
        argument: Mapping[str, Any],
        ranks_here: Sequence[int],
        meters: Sequence[Meter],
        run_programs: RunPrograms,
        run_measurements: RunPrograms,
        measurement_meter: Meter,
    ) -> None:
        self.experiment = Experiment.from_dict(argument["experiment"])
        self.group = self.experiment.groups[argument["group"]]
        method = next(m for m in self.experiment.methods if m.label == argument["label"])
        config = self.experiment.task_of(self.group)
        task = make_task(config.name, config.settings, argument["data"])
        self.steps = argument["steps"]
        times = Path(argument["folder"]) / TIMES_FOLDER if self.group.driver == "processes" else None
        make = partial(Replica, self.experiment, task, self.group, method, argument["seed"])
        self.replicas = [
            make(rank, meter, times and times / f"rank{rank}.bin")
            for rank, meter in zip(ranks_here, meters, strict=True)
        ]
        self.run_programs = run_programs
        self.run_measurements, self.measurement_meter = run_measurements, measurement_meter
        self.recorder = MetricsRecorder(self.replicas[0], self.experiment.target) if 0 in ranks_here else None
        self.folder = Path(argument["folder"]) / "checkpoint"
        self.done = 0

    def run(self, on_progress: Callable[[Any], None], barrier: Callable[[], object] | None = None) -> None:
        """Train until the last step or until the target or divergence ends the run; starts from a checkpoint if any."""
        self._resume()
        settings, stopped = self.experiment.optimizer_of(self.group), False
        while self.done < self.steps and not stopped:
            step = self.done
            measured = step % (self.group.log_every or self.experiment.log_every) == 0
            if measured:
                stopped = self._measure_and_decide(step, on_progress)
                if stopped:
                    break
            lr = learning_rate_at(step, self.steps, self.replicas[0].lr, settings.schedule, settings.warmup_steps)
            self.run_programs([replica.step(step, lr, measured) for replica in self.replicas])
            self.done += 1
            if measured and self.recorder is not None:
                self.recorder.record_step()
            if self.done % self.experiment.checkpoint_every == 0 and self.done < self.steps:
                self._save(barrier)
        if not stopped:
            self._measure(self.done, on_progress)

    def _measure_and_decide(self, step: int, on_progress: Callable[[Any], None]) -> bool:
        """Measure; return True on all ranks if the run ends here: target reached, or weights diverged."""
        self._measure(step, on_progress)
        target = self.experiment.target
        if target is not None and target.stop:
            reached = self.recorder is not None and self.recorder.reached
            flags = self.run_programs([_broadcast_flag(reached, step) for _ in self.replicas])
            if flags[0]:
                return True
        diverged = self.replicas[0].has_diverged  # the same on all ranks, unless replicas differ: then rank 0 decides
        if self.replicas[0].replicas_differ:
            return bool(self.run_measurements([_broadcast_flag(diverged, step) for _ in self.replicas])[0])
        return diverged

    def _measure(self, step: int, on_progress: Callable[[Any], None]) -> None:
        """Measure on rank 0; where replicas differ, the mean of their weights, which all ranks compute together."""
        mean, consensus = None, None
        if self.replicas[0].replicas_differ:
            mean, consensus = self.run_measurements([replica.average_weights(step) for replica in self.replicas])[0]
        if self.recorder is not None:
            self.recorder.record(step, mean, consensus)
            on_progress(self.recorder.progress(step, self.steps))

    def _save(self, barrier: Callable[[], object] | None) -> None:
        state: dict[str, Any] = {str(r.world.rank): r.state_dict() for r in self.replicas}
        state |= {"done": self.done, "measurement_meter": self.measurement_meter.state_dict()}
        if self.recorder is not None:
            state["recorder"] = self.recorder.state_dict()
        rank, size = self.replicas[0].world if barrier is not None else World(0, 1)
        checkpoint.save(self.folder, state, step=self.done, rank=rank, world_size=size, barrier=barrier)

    def _resume(self) -> None:
        if not checkpoint.steps(self.folder):
            return
        rank, size = self.replicas[0].world if len(self.replicas) == 1 else World(0, 1)
        state = checkpoint.load(self.folder, rank=rank, world_size=size)
        for replica in self.replicas:
            replica.load_state_dict(state[str(replica.world.rank)])
        self.done = int(state["done"])
        self.measurement_meter.load_state_dict(state["measurement_meter"])
        if self.recorder is not None:
            self.recorder.load_state_dict(state["recorder"])


def _broadcast_flag(flag: bool, step: int) -> Program[bool]:
    """Rank 0's flag, on all ranks."""
    answer = yield Broadcast(Payload((torch.tensor([flag]),)), 0, (Label("", "control", 1, 1.0),), step)
    return bool(answer.parts[0].item())


def train_in_lockstep(
    driver: Driver, argument: Mapping[str, Any], on_progress: Callable[[Any], None]
) -> dict[str, Any]:
    """Train all replicas in this process; the result has rank 0's curves and times and the bytes of all ranks."""
    del driver  # its world has one rank
    size = Experiment.from_dict(argument["experiment"]).groups[argument["group"]].workers
    meters, measuring = ([Meter() for _ in range(size)] for _ in range(2))
    runners = (partial(lockstep, meters=meters), partial(lockstep, meters=measuring))
    training = Training(argument, range(size), meters, *runners, measuring[0])
    training.run(on_progress)
    assert training.recorder is not None
    totals = [meter.total() for meter in meters]
    traffic = {"sent": [t.sent_bytes for t in totals], "received": [t.received_bytes for t in totals]}
    more = {"times": dict(training.replicas[0].clock.sums), "bytes_by_rank": traffic}
    return _describe_run(argument, training) | training.recorder.result() | more


def train_one_rank(driver: Driver, argument: Mapping[str, Any], on_progress: Callable[[Any], None]) -> dict[str, Any]:
    """Train one replica of several processes; `merge_rank_results` makes one result of all ranks' results."""
    measurement_meter = Meter()

    def run_measurements(programs: Sequence[Program[Any]]) -> Sequence[Any]:
        training_meter = driver.set_meter(measurement_meter)
        try:
            return [driver.run(programs[0])]
        finally:
            driver.set_meter(training_meter)

    def run_programs(programs: Sequence[Program[Any]]) -> Sequence[Any]:
        return [driver.run(programs[0])]

    meters = [driver.meter]
    training = Training(argument, [driver.world.rank], meters, run_programs, run_measurements, measurement_meter)
    training.run(on_progress, driver.barrier)
    clock = training.replicas[0].clock.to_dict() | {"folder": argument["folder"]}
    result = {} if training.recorder is None else _describe_run(argument, training) | training.recorder.result()
    return result | {"clock": clock}


def merge_rank_results(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Rank 0's result with the mean of all ranks' times; writes the trace of the last steps to the job's folder."""
    clocks = [result["clock"] for result in results]
    names = dict.fromkeys(name for clock in clocks for name in clock["sums"])
    times = {name: sum(clock["sums"].get(name, 0.0) for clock in clocks) / len(clocks) for name in names}
    requests = [read_requests(Path(clock["requests"])) for clock in clocks]
    waiting, sending = split_waiting_and_sending(requests)
    result = {key: value for key, value in results[0].items() if key != "clock"}
    folder = Path(clocks[0]["folder"])
    write_json(folder / "trace.json", make_chrome_trace([clock["spans"] for clock in clocks], requests))
    trace = f"jobs/{folder.name}/trace.json"
    return result | {"times": times | {"communication": sending, "waiting": waiting}, "trace": trace}


def _describe_run(argument: Mapping[str, Any], training: Training) -> dict[str, Any]:
    group = asdict(training.group)
    method = next(m for m in training.experiment.methods if m.label == argument["label"])
    return {
        "group": group["title"], "workers": group["workers"], "driver": group["driver"], "link": group["link"],
        "split": group["split"], "label": method.label, "composition": method.text, "seed": argument["seed"],
        "steps": training.done, "measurement_bytes": training.measurement_meter.total().sent_bytes,
    }  # fmt: skip
