"""What an experiment is: plain values out of a TOML file or a Python function, checked before anything starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from thinwire.core import Aggregator, CompositionError, Compressor, IncompatibleParts, topology_of
from thinwire.importance import ImportanceSolver
from thinwire.optimizer_state import MomentsConfig, parse_moments
from thinwire.sync import Local, parse_sync

from ..tables import ConfigError, ConfigTable, build, check_not_negative, check_one_of, check_positive
from ..testbed.network import rate_bits
from .class_paths import collect_class_paths, composition_text, register_class_paths
from .learning_rates import check_learning_rate

DRIVERS = ("lockstep", "processes")
_OF_GROUPS = (
    "title",
    "labels",
    "task",
    "optimizer",
    "steps",
    "record_every",
)  # what a config without groups says of all runs
OPTIMIZERS = ("sgd", "adamw", "cadamw")
SCHEDULES = ("constant", "cosine")
METRICS = ("loss", "train_loss", "accuracy", "perplexity", "grad_norm")


@dataclass(frozen=True)
class Method:
    """One composition under the name that tables and legends show; what is set here counts instead of the common.

    A composition alone takes gradients at every step; local(every=16, exchange=...) is local training. In Python it may
    be a part, or `Local` settings; it is kept as its text, so that a run's folder shows what was run.
    """

    label: str
    composition: str | Aggregator[Any] | Compressor | Local
    lr: float | str | None = None
    importance: Mapping[str, Any] | None = None  # settings of the ImportanceSolver; without, parts like impk have w = 1
    moments: str | None = None  # what Adam's moments are averaged through with each round of local training

    def __post_init__(self) -> None:
        if not isinstance(self.composition, str):
            object.__setattr__(self, "composition", composition_text(self.composition, f"methods: {self.label}"))
        try:
            sync, moments = self.sync(), self.averaged()
        except (CompositionError, IncompatibleParts) as error:
            raise ConfigError(f"methods: {self.label}: {error}") from error
        if self.lr is not None:
            check_learning_rate(self.lr, f"methods: {self.label}: lr")
        self.solver()
        if self.importance is not None and sync.payload != "gradients":
            raise ConfigError(
                f"methods: {self.label}: importance: w is found for gradients at every step, and local(...) sends "
                f"{sync.payload}; leave importance out"
            )
        if moments is not None and (sync.payload == "gradients" or topology_of(sync.exchange) is not None):
            raise ConfigError(
                f"methods: {self.label}: moments are averaged with rounds of all workers; use local(every=16) without "
                "gossip, or leave moments out"
            )

    def sync(self) -> Local:
        return parse_sync(str(self.composition))

    @property
    def text(self) -> str:
        """All of it, for tables."""
        return f"{self.composition}" if self.moments is None else f"{self.composition}, moments by {self.moments}"

    def averaged(self) -> MomentsConfig | None:
        return None if self.moments is None else parse_moments(self.moments)

    def solver(self) -> ImportanceSolver | None:
        if self.importance is None:
            return None
        where = f"methods: {self.label}: importance"
        try:
            return build(ImportanceSolver, self.importance, where)
        except CompositionError as error:
            raise ConfigError(f"{where}: {error}") from error


@dataclass(frozen=True)
class RunGroup:
    """Runs that belong into one table: the same workers, split, driver and link.

    task, optimizer, steps and record_every, if given, count here instead of the experiment's; of task and optimizer,
    those settings that are named. A task of another name has the experiment's settings only if it is given none.
    """

    title: str = ""
    workers: int = 4
    split: str = "iid"
    driver: str = "lockstep"
    link: str = "none"
    labels: tuple[str, ...] = ()  # of the methods that run here; none named: all of them
    task: Mapping[str, Any] | None = None
    optimizer: Mapping[str, Any] | None = None
    steps: int = 0
    record_every: int = 0

    def __post_init__(self) -> None:
        check_positive("workers", self.workers)
        for name in ("steps", "record_every"):
            if getattr(self, name):
                check_positive(name, getattr(self, name))
        check_one_of("driver", self.driver, DRIVERS)
        try:
            rate_bits(self.link)
        except ValueError as error:
            raise ConfigError(f"link: {error}") from error
        if self.link != "none" and self.driver == "lockstep":
            raise ConfigError(f'link: {self.link!r} needs real processes: driver = "processes", or link = "none"')
        if self.driver == "processes" and self.workers < 2:
            raise ConfigError(f"workers: real processes need 2 or more, got {self.workers}")
        if not self.title:
            where = "lockstep" if self.driver == "lockstep" else f"processes, link {self.link}"
            object.__setattr__(self, "title", f"{self.workers} workers, {self.split}, {where}")


@dataclass(frozen=True)
class OptimizerConfig:
    """What every worker does with the average: lr is a number, or "1/L" where the task knows its smoothness L."""

    name: str = "sgd"
    lr: float | str = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    schedule: str = "constant"
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        check_one_of("optimizer.name", self.name, OPTIMIZERS)
        check_one_of("optimizer.schedule", self.schedule, SCHEDULES)
        check_learning_rate(self.lr, "optimizer.lr")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"optimizer.betas: two numbers in [0, 1) are needed, got {list(self.betas)}")
        for name in ("momentum", "weight_decay", "warmup_steps"):
            check_not_negative(f"optimizer.{name}", getattr(self, name))


@dataclass(frozen=True)
class TargetMetric:
    """A run is marked where it first gets this far; with `stop` it ends there."""

    measure: str
    value: float
    stop: bool = False

    def __post_init__(self) -> None:
        check_one_of("target.measure", self.measure, METRICS)

    def reached(self, value: float) -> bool:
        return value >= self.value if self.measure == "accuracy" else value <= self.value


@dataclass(frozen=True)
class TaskConfig:
    """A task's name and its own settings, which it checks itself."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """Every method in every group with every seed: the same task, optimizer and number of steps."""

    name: str
    task: TaskConfig
    methods: tuple[Method, ...]
    groups: tuple[RunGroup, ...] = (RunGroup(),)
    title: str = ""
    about: str = ""
    optimizer: OptimizerConfig = OptimizerConfig()
    steps: int = 0
    epochs: float = 0.0  # instead of steps
    seeds: tuple[int, ...] = (1,)
    record_every: int = 5
    checkpoint_every: int = 100
    bucket_mb: float = 25.0
    small: int = 0  # vectors, and layers of fewer elements, travel dense, as with `attach`; 0: all are compressed
    target: TargetMetric | None = None
    trace_steps: int = 2  # of a run on real processes, the last ones

    def __post_init__(self) -> None:
        if bool(self.steps) == bool(self.epochs):
            raise ConfigError(f"steps, epochs: one of them is needed, got steps={self.steps}, epochs={self.epochs}")
        for name in ("record_every", "checkpoint_every", "bucket_mb", "steps" if self.steps else "epochs"):
            check_positive(name, getattr(self, name))
        for name in ("small", "trace_steps"):
            check_not_negative(name, getattr(self, name))
        if odd := [seed for seed in self.seeds if not 0 <= seed < 1 << 32]:
            raise ConfigError(f"seeds: each must be in [0, 2^32), got {odd[0]}")
        if not re.fullmatch(r"[\w.-]+", self.name):
            raise ConfigError(f"name: letters, digits, '.', '-' and '_' make a folder's name, got {self.name!r}")
        for name in ("methods", "groups", "seeds"):
            if not getattr(self, name):
                raise ConfigError(f"{name}: at least one is needed")
        self._check_names()
        averaged = next((method.label for method in self.methods if method.moments is not None), None)
        if averaged is not None and self.optimizer.name == "sgd":
            raise ConfigError(
                f'methods: {averaged}: moments are Adam\'s; optimizer.name = "adamw" has some, "sgd" none'
            )

    def _check_names(self) -> None:
        for what, names in (
            ("methods", [method.label for method in self.methods]),
            ("groups", [group.title for group in self.groups]),
            ("seeds", [str(seed) for seed in self.seeds]),
        ):
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise ConfigError(f"{what}: {twice[0]!r} is there twice")
        known = {method.label for method in self.methods}
        for group in self.groups:
            self.optimizer_of(group)
            if unknown := [label for label in group.labels if label not in known]:
                raise ConfigError(
                    f"groups: {group.title}: no method is called {unknown[0]!r}; there are {sorted(known)}"
                )

    def methods_of(self, group: RunGroup) -> tuple[Method, ...]:
        return tuple(method for method in self.methods if not group.labels or method.label in group.labels)

    def task_of(self, group: RunGroup) -> TaskConfig:
        own = dict(group.task or {})
        name = str(own.pop("name", self.task.name))
        return TaskConfig(name, own if own and name != self.task.name else {**self.task.settings, **own})

    def optimizer_of(self, group: RunGroup) -> OptimizerConfig:
        if not group.optimizer:
            return self.optimizer
        return build(
            OptimizerConfig, {**asdict(self.optimizer), **group.optimizer}, f"groups: {group.title}: optimizer"
        )

    def with_seeds(self, seeds: tuple[int, ...]) -> Experiment:
        return replace(self, seeds=seeds)

    def to_dict(self) -> dict[str, Any]:
        """As a config file has it: what equals the default is left out."""
        config = _without_defaults(self)
        config["task"] = {"name": self.task.name, **self.task.settings}
        config["methods"] = {
            m.label: {key: value for key, value in asdict(m).items() if key != "label" and value is not None}
            for m in self.methods
        }
        config["groups"] = [_without_defaults(group) | {"title": group.title} for group in self.groups]
        config["optimizer"] = _without_defaults(self.optimizer)
        return config | collect_class_paths(
            [m.sync() for m in self.methods], [self.task_of(group).name for group in self.groups]
        )

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], name: str = "") -> Experiment:
        """Out of a TOML or JSON file. Unknown keys, missing ones and wrong types are a ConfigError."""
        table = ConfigTable(config)
        register_class_paths(table.take("parts", {}), table.take("tasks", {}))
        common = table.take_some([f.name for f in fields(RunGroup) if f.name not in _OF_GROUPS])
        if common and "groups" in config:
            raise ConfigError(f"{next(iter(common))}: belongs into the groups, since there are some")
        if "methods" not in config:
            raise ConfigError('methods: missing; a table such as [methods] "Top-k" = "ef(topk(density=0.01))"')
        if "task" not in config:
            raise ConfigError('task: missing; a table such as [task] name = "logistic"')
        values: dict[str, Any] = {
            "task": _task(table.take("task")),
            "methods": tuple(_method(label, value) for label, value in table.take_table("methods").items()),
            "groups": tuple(build(RunGroup, group, "groups") for group in table.take("groups", [common])),
        }
        if "optimizer" in config:
            values["optimizer"] = build(OptimizerConfig, table.take_table("optimizer"), "optimizer")
        if config.get("target") is not None:
            values["target"] = build(TargetMetric, table.take_table("target"), "target")
        rest = {"name": name} if name and "name" not in config else {}
        return build(cls, {**rest, **table.rest()}, "", **values)


def _task(value: Any) -> TaskConfig:
    if isinstance(value, str):
        return TaskConfig(value)
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise ConfigError(f"task: a name, or a table with a name, is needed, got {value!r}")
    return TaskConfig(value["name"], {key: setting for key, setting in value.items() if key != "name"})


def _method(label: str, value: Any) -> Method:
    if isinstance(value, str | Aggregator | Compressor | Local):
        return Method(label, value)
    return build(Method, value, f"methods: {label}", label=label)


def _without_defaults(value: Any) -> dict[str, Any]:
    default = {f.name: f.default for f in fields(value)}
    return {key: held for key, held in asdict(value).items() if getattr(value, key) != default[key]}
