"""One run of an experiment: the same training loop for all workers in one process and for one worker in each."""

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
from ..measuring.clock import chrome_trace, waiting_and_sending
from ..measuring.folder import TIMES, write_json
from ..measuring.metrics import Observer
from ..measuring.request_log import read_requests
from ..tasks import make_task
from .optimizers import rate_at
from .worker import Worker

Carry = Callable[[Sequence[Program[Any]]], Sequence[Any]]


class Training:
    """Workers of this process (all of them in lockstep, or one), trained step by step, observed, stored and resumed."""

    def __init__(
        self,
        argument: Mapping[str, Any],
        workers_here: Sequence[int],
        meters: Sequence[Meter],
        carry: Carry,
        carry_looks: Carry,
        looked: Meter,
    ) -> None:
        self.experiment = Experiment.from_dict(argument["experiment"])
        self.group = self.experiment.groups[argument["group"]]
        method = next(m for m in self.experiment.methods if m.label == argument["label"])
        config = self.experiment.task_of(self.group)
        task = make_task(config.name, config.settings, argument["data"])
        self.steps = argument["steps"]
        times = Path(argument["folder"]) / TIMES if self.group.driver == "processes" else None
        build = partial(Worker, self.experiment, task, self.group, method, argument["seed"])
        self.workers = [
            build(rank, meter, times and times / f"rank{rank}.bin")
            for rank, meter in zip(workers_here, meters, strict=True)
        ]
        self.carry = carry
        self.carry_looks, self.looked = carry_looks, looked  # what is sent only to look is counted apart
        self.observer = Observer(self.workers[0], self.experiment.target) if 0 in workers_here else None
        self.folder = Path(argument["folder"]) / "checkpoint"
        self.done = 0

    def run(self, tell: Callable[[Any], None], barrier: Callable[[], object] | None = None) -> None:
        self._resume()
        settings, over = self.experiment.optimizer_of(self.group), False
        while self.done < self.steps and not over:
            step = self.done
            watched = step % (self.group.record_every or self.experiment.record_every) == 0
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
        if not over:
            self._observe(self.done, tell)

    def _look(self, step: int, tell: Callable[[Any], None]) -> bool:
        """Measure; True if the run ends here, which all ranks know alike."""
        self._observe(step, tell)
        target = self.experiment.target
        if target is not None and target.stop:
            reached = self.observer is not None and self.observer.reached
            flags = self.carry([_from_rank_0(reached, step) for _ in self.workers])
            if flags[0]:
                return True
        exploded = self.workers[0].exploded  # all ranks hold the same weights, or
        if self.workers[0].replicas_differ:  # rank 0 decides
            return bool(self.carry_looks([_from_rank_0(exploded, step) for _ in self.workers])[0])
        return exploded

    def _observe(self, step: int, tell: Callable[[Any], None]) -> None:
        """Rank 0 looks; where replicas differ, at the mean of all, which all ranks make together."""
        mean, apart = None, None
        if self.workers[0].replicas_differ:
            mean, apart = self.carry_looks([worker.shown(step) for worker in self.workers])[0]
        if self.observer is not None:
            self.observer.look(step, mean, apart)
            tell(self.observer.news(step, self.steps))

    def _save(self, barrier: Callable[[], object] | None) -> None:
        state: dict[str, Any] = {str(w.world.rank): w.state_dict() for w in self.workers}
        state |= {"done": self.done, "looked": self.looked.state_dict()}
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
        self.looked.load_state_dict(state["looked"])
        if self.observer is not None:
            self.observer.load_state_dict(state["observer"])


def _from_rank_0(flag: bool, step: int) -> Program[bool]:
    told = yield Broadcast(Payload((torch.tensor([flag]),)), 0, (Label("", "control", 1, 1.0),), step)
    return bool(told.parts[0].item())


def in_lockstep(driver: Driver, argument: Mapping[str, Any], tell: Callable[[Any], None]) -> dict[str, Any]:
    """All workers in this process. Rank 0's bytes, and the totals of all ranks, which differ where one is a server;
    times are those of computing and encoding, for one worker."""
    del driver  # a world of one
    size = Experiment.from_dict(argument["experiment"]).groups[argument["group"]].workers
    meters, looked = ([Meter() for _ in range(size)] for _ in range(2))
    carries = (partial(lockstep, meters=meters), partial(lockstep, meters=looked))
    training = Training(argument, range(size), meters, *carries, looked[0])
    training.run(tell)
    assert training.observer is not None
    totals = [meter.total() for meter in meters]
    traffic = {"sent": [t.sent_bytes for t in totals], "received": [t.received_bytes for t in totals]}
    more = {"times": dict(training.workers[0].clock.sums), "bytes_by_rank": traffic}
    return _head(argument, training) | training.observer.result() | more


def on_one_rank(driver: Driver, argument: Mapping[str, Any], tell: Callable[[Any], None]) -> dict[str, Any]:
    """One of several processes; `together` makes one result of theirs."""

    looked = Meter()

    def look(programs: Sequence[Program[Any]]) -> Sequence[Any]:
        counted = driver.count_with(looked)
        try:
            return [driver.run(programs[0])]
        finally:
            driver.count_with(counted)

    def carry(programs: Sequence[Program[Any]]) -> Sequence[Any]:
        return [driver.run(programs[0])]

    training = Training(argument, [driver.world.rank], [driver.meter], carry, look, looked)
    training.run(tell, driver.barrier)
    clock = training.workers[0].clock.to_dict() | {"folder": argument["folder"]}
    result = {} if training.observer is None else _head(argument, training) | training.observer.result()
    return result | {"clock": clock}


def together(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Rank 0's result with all ranks' times; the last steps' trace goes to a file beside it."""
    clocks = [result["clock"] for result in results]
    names = dict.fromkeys(name for clock in clocks for name in clock["sums"])
    times = {name: sum(clock["sums"].get(name, 0.0) for clock in clocks) / len(clocks) for name in names}
    requests = [read_requests(Path(clock["requests"])) for clock in clocks]
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
        "split": group["split"], "label": method.label, "composition": method.text, "seed": argument["seed"],
        "steps": training.done, "looking_bytes": training.looked.total().sent_bytes,
    }  # fmt: skip
