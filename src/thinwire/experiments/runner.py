"""Runs an experiment: every method in every group, in one process or on real ones, with the same training loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from ..catalog import parse
from ..core import Program, TensorSpec, World
from ..drivers.lockstep import lockstep
from ..drivers.meter import Meter
from ..drivers.processes import run_ranks
from ..drivers.torch_dist import TorchDist
from ..exchange import Exchanger
from .config import Experiment, Group, Method
from .results import Curve, plain, versions
from .tasks.logistic import Logistic, mushrooms, split

Progress = Callable[[str, int, int], None]  # what runs, steps done, steps in all
Look = Callable[[int, torch.Tensor], None]  # step, weights


def run_experiment(experiment: Experiment, progress: Progress, command: str) -> dict[str, Any]:
    """The result of all its runs, as plain JSON."""
    runs: list[dict[str, Any]] = []
    for group in experiment.groups:
        runs += run_group(experiment, group, progress)
    return {
        "name": experiment.name, "title": experiment.title, "about": experiment.about, "command": command,
        "target_loss": experiment.target_loss, "config": experiment.to_dict(), "versions": versions(),
        "runs": plain(runs), "checks": parity_checks(experiment, runs),
    }  # fmt: skip


def run_group(experiment: Experiment, group: Group, progress: Progress) -> list[dict[str, Any]]:
    methods = experiment.methods_of(group)
    total = experiment.steps * len(methods)

    def tell(done: int) -> None:
        progress(group.title, done, total)

    if group.driver == "lockstep":
        runs = [_in_lockstep(experiment, group, at, tell) for at in range(len(methods))]
    else:
        config = {"experiment": experiment.to_dict(), "group": experiment.groups.index(group)}
        runs = run_ranks(group.workers, f"{__name__}:on_one_rank", config, tell=tell)[0]
    head = {"group": group.title, "workers": group.workers, "driver": group.driver}
    return [head | asdict(method) | run for method, run in zip(methods, runs, strict=True)]


def train(
    share: Logistic,
    exchanger: Exchanger,
    world: World,
    experiment: Experiment,
    step_size: float,
    look: Callable[..., None],
) -> Program[None]:
    """Gradient descent as one worker sees it: its own gradient, everybody's average, one step. Any driver will do."""
    weights = torch.zeros(share.features.shape[1], dtype=share.features.dtype)
    for step in range(experiment.steps):
        look(step, weights)
        agreed = yield from exchanger.round({"weights": share.gradient(weights)}, step, world)
        weights = weights - step_size * agreed["weights"]
    look(experiment.steps, weights)


def _worker(experiment: Experiment, group: Group, method: Method, rank: int, look: Look) -> Program[None]:
    whole = mushrooms(experiment.ridge)
    share = split(whole, group.workers, group.split, experiment.seed)[rank]
    spec = TensorSpec("weights", (whole.features.shape[1],), whole.features.dtype)
    exchanger = Exchanger([spec], parse(method.composition), seed=experiment.seed)
    step_size = experiment.step_over_L / whole.smoothness
    return train(share, exchanger, World(rank, group.workers), experiment, step_size, look)


class _Observer:
    """Looks at rank 0's weights now and then; the other ranks hold the same."""

    def __init__(self, experiment: Experiment, at: int, meter: Meter, tell: Callable[[int], None]) -> None:
        self.experiment, self.tell = experiment, tell
        self.steps_before = at * experiment.steps
        self.whole = mushrooms(experiment.ridge)
        self.curve = Curve(meter)

    def __call__(self, step: int, weights: torch.Tensor) -> None:
        if step % self.experiment.record_every and step != self.experiment.steps:
            return
        loss, gradient, accuracy = (f(weights) for f in (self.whole.loss, self.whole.gradient, self.whole.accuracy))
        self.curve.add(step, float(loss), float(gradient.norm()), float(accuracy))
        self.tell(self.steps_before + step)

    def result(self) -> dict[str, Any]:
        return self.curve.to_dict() | {"steps_to_target": self.curve.steps_to(self.experiment.target_loss)}


def _look_away(step: int, weights: torch.Tensor) -> None:
    """For the ranks that nobody observes."""


def _in_lockstep(experiment: Experiment, group: Group, at: int, tell: Callable[[int], None]) -> dict[str, Any]:
    meters = [Meter() for _ in range(group.workers)]
    observer = _Observer(experiment, at, meters[0], tell)
    looks: list[Look] = [observer] + [_look_away] * (group.workers - 1)
    method = experiment.methods_of(group)[at]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as real ranks have, so that products have the same bits
    try:
        lockstep([_worker(experiment, group, method, rank, look) for rank, look in enumerate(looks)], meters)
    finally:
        torch.set_num_threads(threads)
    return observer.result()


def on_one_rank(driver: TorchDist, config: dict[str, Any], tell: Callable[[int], None]) -> list[dict[str, Any]]:
    """The job of one real process: all methods of a group, one after another. Rank 0 observes."""
    experiment = Experiment.from_dict(config["experiment"])
    group = experiment.groups[config["group"]]
    rank = driver.world.rank
    results = []
    for at, method in enumerate(experiment.methods_of(group)):
        driver.meter = Meter()
        observer = _Observer(experiment, at, driver.meter, tell)
        driver.run(_worker(experiment, group, method, rank, _look_away if rank else observer))
        results.append({} if rank else observer.result())
    return results


def parity_checks(experiment: Experiment, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Does each real run give the figures of the lockstep run with the same workers and split, to the last bit?"""
    checks = []
    for real in (g for g in experiment.groups if g.driver == "processes"):
        twins = [
            g for g in experiment.groups if (g.workers, g.split, g.driver) == (real.workers, real.split, "lockstep")
        ]
        for twin in twins:
            ours, theirs = _curves(runs, real), _curves(runs, twin)
            both = [label for label in ours if label in theirs]
            differing = [label for label in both if plain(ours[label]) != plain(theirs[label])]
            detail = f"all curves and bytes of {len(both)} methods are equal to the last bit"
            checks.append(
                {
                    "text": f"{real.title}: the same figures as {twin.title}",
                    "holds": not differing,
                    "detail": f"differing: {', '.join(differing)}" if differing else detail,
                }
            )
    return checks


def _curves(runs: list[dict[str, Any]], group: Group) -> dict[str, Any]:
    return {run["label"]: run["curve"] for run in runs if run["group"] == group.title}
