"""The config of an experiment: plain values from a TOML file or from Python, checked before anything starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from thinwire.core import Aggregator, Compressor
from thinwire.sync import Local

from ..tables import ConfigError, ConfigTable, build, check_not_negative, check_one_of, check_positive
from ..testbed.network import rate_bits
from .class_paths import collect_class_paths, register_class_paths
from .learning_rates import check_learning_rate
from .method import Method

__all__ = ["METRICS", "Experiment", "Method", "OptimizerConfig", "RunGroup", "TargetMetric", "TaskConfig"]

DRIVERS = ("lockstep", "processes")
_NOT_COMMON = ("title", "methods", "task", "optimizer", "steps", "log_every")  # a file without groups has its own
OPTIMIZERS = ("sgd", "adamw", "cadamw")
SCHEDULES = ("constant", "cosine")
METRICS = ("loss", "train_loss", "accuracy", "perplexity", "grad_norm")


@dataclass(frozen=True)
class RunGroup:
    """Runs that share one table of the report: the same workers, split, driver and link.

    Args:
        title: of the table; "": made from the other settings.
        workers: number of ranks.
        split: how examples are distributed: "iid", "label-sorted" or "dirichlet(ALPHA)".
        driver: "lockstep" (all ranks in one process) or "processes" (one process per rank, timed).
        link: rate of the links in the testbed, such as "100mbit"; "none": not shaped. Needs driver "processes".
        methods: labels of the methods that run in this group; empty: all.
        task: settings that replace the experiment's. With another name, the experiment's settings apply only if no
            other setting is given.
        optimizer: settings that replace the experiment's.
        steps, log_every: replace the experiment's; 0: the experiment's.
    """

    title: str = ""
    workers: int = 4
    split: str = "iid"
    driver: str = "lockstep"
    link: str = "none"
    methods: tuple[str, ...] = ()
    task: Mapping[str, Any] | None = None
    optimizer: Mapping[str, Any] | None = None
    steps: int = 0
    log_every: int = 0

    def __post_init__(self) -> None:
        check_positive("workers", self.workers)
        for name in ("steps", "log_every"):
            if getattr(self, name):
                check_positive(name, getattr(self, name))
        check_one_of("driver", self.driver, DRIVERS)
        try:
            rate_bits(self.link)
        except ValueError as error:
            raise ConfigError(f"link: {error}") from error
        if self.link != "none" and self.driver == "lockstep":
            raise ConfigError(
                f'link: {self.link!r} needs driver = "processes"; with "lockstep" only link = "none" works'
            )
        if self.driver == "processes" and self.workers < 2:
            raise ConfigError(f'workers: driver = "processes" needs 2 or more, got {self.workers}')
        if not self.title:
            where = "lockstep" if self.driver == "lockstep" else f"processes, link {self.link}"
            object.__setattr__(self, "title", f"{self.workers} workers, {self.split}, {where}")


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer of every replica. lr: a number, or text such as "1/L" for tasks with a known smoothness L."""

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
            raise ConfigError(f"optimizer.betas: must be two numbers in [0, 1), got {list(self.betas)}")
        for name in ("momentum", "weight_decay", "warmup_steps"):
            check_not_negative(f"optimizer.{name}", getattr(self, name))


@dataclass(frozen=True)
class TargetMetric:
    """A value of a metric; tables show after how many steps a run reaches it. stop: end the run there."""

    metric: str
    value: float
    stop: bool = False

    def __post_init__(self) -> None:
        check_one_of("target.metric", self.metric, METRICS)

    def is_reached(self, value: float) -> bool:
        return value >= self.value if self.metric == "accuracy" else value <= self.value


@dataclass(frozen=True)
class TaskConfig:
    """The name of a task and its settings, which the task checks."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """Every method runs in every group with every seed.

    Args:
        name: default name of the run's folder.
        task, methods, groups, optimizer: see their classes.
        title, description: shown at the top of the report.
        steps: optimizer steps of each run; or epochs: passes of all workers together over the examples.
        seeds: one run each; a seed sets the split, batches, initial weights and random choices of parts.
        log_every: steps between two measurements.
        checkpoint_every: steps between two checkpoints.
        bucket_mb: size of the buckets in which gradients are exchanged.
        dense_below: vectors and layers with fewer elements are sent dense; 0: all layers are compressed.
        target: a value of a metric to reach.
        trace_steps: number of last steps in the trace of a run on processes.
    """

    name: str
    task: TaskConfig
    methods: tuple[Method, ...]
    groups: tuple[RunGroup, ...] = (RunGroup(),)
    title: str = ""
    description: str = ""
    optimizer: OptimizerConfig = OptimizerConfig()
    steps: int = 0
    epochs: float = 0.0
    seeds: tuple[int, ...] = (1,)
    log_every: int = 5
    checkpoint_every: int = 100
    bucket_mb: float = 25.0
    dense_below: int = 0
    target: TargetMetric | None = None
    trace_steps: int = 2

    def __post_init__(self) -> None:
        if bool(self.steps) == bool(self.epochs):
            raise ConfigError(
                f"steps, epochs: exactly one of them must be set, got steps = {self.steps}, epochs = {self.epochs}"
            )
        for name in ("log_every", "checkpoint_every", "bucket_mb", "steps" if self.steps else "epochs"):
            check_positive(name, getattr(self, name))
        for name in ("dense_below", "trace_steps"):
            check_not_negative(name, getattr(self, name))
        if odd := [seed for seed in self.seeds if not 0 <= seed < 1 << 32]:
            raise ConfigError(f"seeds: each must be in [0, 2^32), got {odd[0]}")
        if not re.fullmatch(r"[\w.-]+", self.name):
            raise ConfigError(f"name: may contain letters, digits, '.', '-' and '_', got {self.name!r}")
        for name in ("methods", "groups", "seeds"):
            if not getattr(self, name):
                raise ConfigError(f"{name}: must not be empty")
        self._check_names()
        method_with_moments = next((method.label for method in self.methods if method.moments is not None), None)
        if method_with_moments is not None and self.optimizer.name == "sgd":
            raise ConfigError(
                f'methods: {method_with_moments}: moments: optimizer.name = "sgd" has no moments of Adam; use "adamw"'
            )

    def _check_names(self) -> None:
        for what, names in (
            ("methods", [method.label for method in self.methods]),
            ("groups", [group.title for group in self.groups]),
            ("seeds", [str(seed) for seed in self.seeds]),
        ):
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise ConfigError(f"{what}: {twice[0]!r} occurs twice")
        known = {method.label for method in self.methods}
        for group in self.groups:
            self.optimizer_of(group)
            if unknown := [label for label in group.methods if label not in known]:
                raise ConfigError(
                    f"groups: {group.title}: methods: there is no method {unknown[0]!r}; there are {sorted(known)}"
                )

    def methods_of(self, group: RunGroup) -> tuple[Method, ...]:
        return tuple(method for method in self.methods if not group.methods or method.label in group.methods)

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
        """The keys and values of a config file, without those that equal the defaults."""
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
        """Make an experiment from the keys and values of a TOML or JSON file.

        Raises:
            ConfigError: a key is unknown, renamed or missing, or a value is wrong.
        """
        table = ConfigTable(config)
        register_class_paths(table.take("parts", {}), table.take("tasks", {}))
        common = table.take_some([f.name for f in fields(RunGroup) if f.name not in _NOT_COMMON])
        if common and "groups" in config:
            raise ConfigError(f"{next(iter(common))}: must be set in [[groups]], because the file has groups")
        if "methods" not in config:
            raise ConfigError('methods: missing; example: [methods] "Top-k" = "ef(topk(density=0.01))"')
        if "task" not in config:
            raise ConfigError('task: missing; example: [task] name = "logistic"')
        values: dict[str, Any] = {
            "task": _read_task(table.take("task")),
            "methods": tuple(_read_method(label, value) for label, value in table.take_table("methods").items()),
            "groups": _read_groups(table.take("groups", [common])),
        }
        if "optimizer" in config:
            values["optimizer"] = build(OptimizerConfig, table.take_table("optimizer"), "optimizer")
        if config.get("target") is not None:
            values["target"] = build(TargetMetric, table.take_table("target"), "target")
        rest = {"name": name} if name and "name" not in config else {}
        return build(cls, {**rest, **table.rest()}, "", **values)


def _read_groups(value: Any) -> tuple[RunGroup, ...]:
    """[[groups]], or one table [groups]."""
    tables = [value] if isinstance(value, Mapping) else value
    if not isinstance(tables, list | tuple):
        raise ConfigError(f"groups: must be a list of tables ([[groups]]), got {value!r}")
    return tuple(build(RunGroup, group, "groups") for group in tables)


def _read_task(value: Any) -> TaskConfig:
    if isinstance(value, str):
        return TaskConfig(value)
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise ConfigError(f"task: must be a name or a table with a name, got {value!r}")
    return TaskConfig(value["name"], {key: setting for key, setting in value.items() if key != "name"})


def _read_method(label: str, value: Any) -> Method:
    if isinstance(value, str | Aggregator | Compressor | Local):
        return Method(label, value)
    return build(Method, value, f"methods: {label}", label=label)


def _without_defaults(value: Any) -> dict[str, Any]:
    default = {f.name: f.default for f in fields(value)}
    return {key: item for key, item in asdict(value).items() if getattr(value, key) != default[key]}
