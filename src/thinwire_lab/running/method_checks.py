"""Check all methods of an experiment before any job starts, by composing them for the layers of the task."""

from __future__ import annotations

from typing import Any

from thinwire.core import CompositionError, IncompatibleParts, Topology, World, parts_of, takes_importance
from thinwire.drivers.meter import Meter

from ..configuration.config import Experiment, Method, RunGroup
from ..configuration.learning_rates import resolve_learning_rate
from ..tables import ConfigError
from ..tasks.base import Learner, Task
from ..tasks.splits import Split
from .replica import Replica


class _SharedLearnerTask:
    """A task that returns the same learner for all methods, so that data and weights are made once."""

    def __init__(self, task: Task, learner: Learner) -> None:
        self.smoothness, self._learner = task.smoothness, learner

    def learner(self, *_: Any) -> Learner:
        return self._learner


def check_methods(experiment: Experiment, group: RunGroup, task: Task) -> None:
    """Compose every method of a group as its jobs will do it.

    Raises:
        ConfigError: a learning rate, composition, topology or importance does not fit the task or the workers.
    """
    methods = experiment.methods_of(group)
    where = f"groups: {group.title}: " if len(experiment.groups) > 1 else ""
    for method in methods:
        _check_rate(experiment, group, task, method, where)
    shared: Any = _SharedLearnerTask(
        task, task.learner(0, group.workers, Split.parse(group.split), experiment.seeds[0])
    )
    for method in methods:
        try:
            _check_method(experiment, group, shared, method)
        except (CompositionError, IncompatibleParts, ConfigError) as error:
            raise ConfigError(f"{where}methods: {method.label}: {error}") from error


def _check_rate(experiment: Experiment, group: RunGroup, task: Task, method: Method, where: str) -> None:
    own = method.lr is not None
    key = f"{where}methods: {method.label}: lr" if own else f"{where}optimizer.lr"
    resolve_learning_rate(method.lr or experiment.optimizer_of(group).lr, task.smoothness, key)


def _check_method(experiment: Experiment, group: RunGroup, task: Any, method: Method) -> None:
    replica = Replica(experiment, task, group, method, experiment.seeds[0], 0, Meter())
    parts = {id(part): part for rule in replica.exchanger.aggregators.values() for part in parts_of(rule)}.values()
    for topology in (part for part in parts if isinstance(part, Topology)):
        try:
            topology.weights(World(0, group.workers), 0)
        except CompositionError as error:
            raise ConfigError(f"workers = {group.workers}: {error}") from error
    for spec, menu in replica.exchanger.menus:
        option = replica.exchanger.plan[spec.name]
        if not 0 <= option < len(menu.options):
            raise ConfigError(
                f"the plan gives layer {spec.name} option {option}; its menu has {len(menu.options)}, counted from 0"
            )
    if method.importance is not None and not any(takes_importance(part) for part in parts):
        raise ConfigError(
            f"importance: no part of {method.composition} takes one; use impk, importance_topk or "
            "importance_sampling, or leave it out"
        )
