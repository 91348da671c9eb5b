"""Synchronization policies: when a round of local training is due (Local SGD, post-local SGD, drift thresholds).

Policies are pure functions of values that are equal on all ranks, so all ranks decide alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from ..core import CompositionError


class StepInfo(NamedTuple):
    """The state after a local step that policies decide by. It has no clock and no value of one rank alone.

    step: counted from 0. since_sync: local steps since the last round, this one included. drift: the ranks' distance
    from their anchors relative to the weights (`measures.drift`), equal on all ranks; None if it was not measured.
    """

    step: int
    since_sync: int
    drift: float | None = None


@runtime_checkable
class SyncPolicy(Protocol):
    """Decides whether a round is due."""

    def is_due(self, info: StepInfo) -> bool:
        """Whether a round is due after this step."""
        ...

    @property
    def test_every(self) -> int:
        """Local steps between two measurements of the drift; 0: it is never measured."""
        ...


@dataclass(frozen=True)
class Every:
    """A round after every `period` local steps: Local SGD (Stich, 2019)."""

    period: int = 1

    def __post_init__(self) -> None:
        _check_at_least_one("every", "period", self.period)

    @property
    def test_every(self) -> int:
        return 0

    def is_due(self, info: StepInfo) -> bool:
        return info.since_sync >= self.period


@dataclass(frozen=True)
class BSP:
    """A round after every step: bulk-synchronous parallel training."""

    @property
    def test_every(self) -> int:
        return 0

    def is_due(self, info: StepInfo) -> bool:
        return True


@dataclass(frozen=True)
class PostLocal:
    """Post-local SGD (Lin et al., 2020): a round after each of the first `start` steps, then after every `period`."""

    start: int
    period: int

    def __post_init__(self) -> None:
        _check_at_least_one("post_local", "period", self.period)
        if self.start < 0:
            raise CompositionError(
                f"post_local: start must not be negative, got {self.start}; 0 is the same as every({self.period})"
            )

    @property
    def test_every(self) -> int:
        return 0

    def is_due(self, info: StepInfo) -> bool:
        return info.step < self.start or info.since_sync >= self.period


@dataclass(frozen=True)
class Drift:
    """A round when the relative drift exceeds `threshold`, and after `max_period` steps at the latest.

    The drift is measured every `test_every` steps by an all-reduce of two numbers. A drift that is not finite is
    ignored.
    """

    threshold: float
    max_period: int = 64
    test_every: int = 1

    def __post_init__(self) -> None:
        _check_at_least_one("drift", "max_period", self.max_period)
        _check_at_least_one("drift", "test_every", self.test_every)
        if not self.threshold > 0:
            raise CompositionError(
                f"drift: threshold must be positive, got {self.threshold}; 0.01 is one percent of the weights' norm"
            )

    def is_due(self, info: StepInfo) -> bool:
        is_far = info.drift is not None and math.isfinite(info.drift) and info.drift > self.threshold
        return is_far or info.since_sync >= self.max_period


def period_bound(steps: int, workers: int) -> float:
    """T^(1/4) / N^(3/4): the longest period of T steps on N workers for which theory promises a linear speed-up."""
    if steps < 1 or workers < 1:
        raise CompositionError(f"period_bound: steps and workers must be at least 1, got {steps} and {workers}")
    return float(steps**0.25 / workers**0.75)


def _check_at_least_one(part: str, name: str, value: int) -> None:
    if value < 1:
        raise CompositionError(f"{part}: {name} must be at least 1, got {value}; 1 is after every step")
