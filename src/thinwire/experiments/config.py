"""What an experiment is: plain values, checked when they are put together."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..catalog import parse
from ..core import CompositionError

SPLITS = ("label-sorted", "iid")
DRIVERS = ("lockstep", "processes")


@dataclass(frozen=True)
class Method:
    """One composition under the name that tables and legends show."""

    label: str
    composition: str


@dataclass(frozen=True)
class Group:
    """Runs that belong into one table: the same workers, split and driver."""

    title: str
    workers: int
    split: str = "iid"
    driver: str = "lockstep"
    labels: tuple[str, ...] = ()  # of the methods that run here; none named: all of them

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise CompositionError(f"Group: workers must be at least 1, got {self.workers}")
        for name, value, allowed in (("split", self.split, SPLITS), ("driver", self.driver, DRIVERS)):
            if value not in allowed:
                raise CompositionError(f"Group: {name} must be one of {', '.join(allowed)}, got {value!r}")


@dataclass(frozen=True)
class Experiment:
    """Logistic regression with a ridge on the mushrooms, by gradient descent with a fixed step for all methods.

    The step is `step_over_L` / L, L being the smoothness of the whole problem. A share `held_out` of the rows, drawn
    with the seed, is kept from training and used for the accuracy alone; L is then that of the rest.
    """

    name: str
    title: str
    about: str
    groups: tuple[Group, ...]
    methods: tuple[Method, ...]
    steps: int
    step_over_L: float = 1.0  # noqa: N815 (L is the literature's name)
    ridge: float = 1e-3
    held_out: float = 0.0
    target_loss: float = 0.1
    record_every: int = 5
    seed: int = 1

    def __post_init__(self) -> None:
        for method in self.methods:
            parse(method.composition)
        known = {method.label for method in self.methods}
        for group in self.groups:
            if unknown := [label for label in group.labels if label not in known]:
                raise CompositionError(f"Group {group.title}: no method is called {', '.join(unknown)}")
        if not 0 <= self.held_out < 1:
            raise CompositionError(f"Experiment {self.name}: held_out must be in [0, 1), got {self.held_out}")
        for name in ("steps", "record_every", "step_over_L"):
            if not getattr(self, name) > 0:
                raise CompositionError(f"Experiment {self.name}: {name} must be positive, got {getattr(self, name)}")

    def methods_of(self, group: Group) -> tuple[Method, ...]:
        return tuple(method for method in self.methods if not group.labels or method.label in group.labels)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> Experiment:
        groups = tuple(Group(**(group | {"labels": tuple(group["labels"])})) for group in config["groups"])
        methods = tuple(Method(**method) for method in config["methods"])
        return cls(**(config | {"groups": groups, "methods": methods}))
