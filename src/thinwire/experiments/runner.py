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
from .side_by_side import side_by_side
from .tasks.logistic import Logistic, mushrooms, split, without

Progress = Callable[[str, int, int], None]  # what runs, steps done, steps in all
Look = Callable[..., None]  # step, weights, last: whether there will be more
EXPLOSION = 1e12  # weights beyond this will not come back, and overflow soon


def run_experiment(
    experiment: Experiment, progress: Progress, command: str, processes: int | None = 1
) -> dict[str, Any]:
    """The result of all its runs, as plain JSON. `processes` may share the groups; None takes as many as there are."""
    if processes == 1:
        parts = [run_group(experiment, group, progress) for group in experiment.groups]
    else:
        tasks = [{"experiment": experiment.to_dict(), "group": at} for at in range(len(experiment.groups))]
        total = experiment.steps * sum(len(experiment.methods_of(group)) for group in experiment.groups)

        def tell(share: float) -> None:
            progress(experiment.name, round(total * share), total)

        parts = side_by_side(f"{__name__}:one_group", tasks, tell, processes)
    runs: list[dict[str, Any]] = [run for part in parts for run in part]
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


def one_group(task: dict[str, Any], share: Callable[[float], None]) -> list[dict[str, Any]]:
    """A group on a process of its own."""
    experiment = Experiment.from_dict(task["experiment"])
    return run_group(experiment, experiment.groups[task["group"]], lambda _, done, total: share(done / total))


def train(
    share: Logistic,
    exchanger: Exchanger,
    world: World,
    experiment: Experiment,
    step_size: float,
    look: Look,
) -> Program[None]:
    """Gradient descent as one worker sees it: its own gradient, everybody's average, one step. Any driver will do.

    It ends early when the weights explode, on all ranks alike, since they hold the same weights.
    """
    weights = torch.zeros(share.features.shape[1], dtype=share.features.dtype)
    for step in range(experiment.steps):
        look(step, weights)
        agreed = yield from exchanger.round({"weights": share.gradient(weights)}, step, world)
        weights = weights - step_size * agreed["weights"]
        if not bool(weights.abs().amax() < EXPLOSION):
            break
    look(step + 1, weights, last=True)


def _problem(experiment: Experiment) -> tuple[Logistic, Logistic]:
    """What is trained on, and what accuracy is measured on: all of it for both, if nothing is held out."""
    whole = mushrooms(experiment.ridge)
    return without(whole, experiment.held_out, experiment.seed) if experiment.held_out else (whole, whole)


def _worker(experiment: Experiment, group: Group, method: Method, rank: int, look: Look) -> Program[None]:
    whole, _ = _problem(experiment)
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
        self.whole, self.test = _problem(experiment)
        self.curve = Curve(meter)

    def __call__(self, step: int, weights: torch.Tensor, last: bool = False) -> None:
        if step % self.experiment.record_every and not last:
            return
        loss, gradient, accuracy = (f(weights) for f in (self.whole.loss, self.whole.gradient, self.test.accuracy))
        self.curve.add(step, float(loss), float(gradient.norm()), float(accuracy))
        self.tell(self.steps_before + (self.experiment.steps if last else step))

    def result(self) -> dict[str, Any]:
        return self.curve.to_dict() | {"steps_to_target": self.curve.steps_to(self.experiment.target_loss)}


def _look_away(step: int, weights: torch.Tensor, last: bool = False) -> None:
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
