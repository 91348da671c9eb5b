"""When workers talk: pure functions of what all ranks know alike, so that all of them decide alike."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from ..core import CompositionError


class Moment(NamedTuple):
    """After a local step. Steps count from 0; `since_sync` counts the local steps since the last round, this one too.

    drift: how far workers have gone since then, relative to their weights, as `measures.drift` agreed on it; None if
    nobody looked. Never a clock's reading, and never one rank's own number: ranks would part.
    """

    step: int
    since_sync: int
    drift: float | None = None


@runtime_checkable
class SyncPolicy(Protocol):
    """Says whether a round is due now."""

    def due(self, moment: Moment) -> bool: ...

    @property
    def looks_every(self) -> int:
        """Local steps between two looks at the drift; 0: it never looks."""
        ...


@dataclass(frozen=True)
class Every:
    """A round after every `period` local steps."""

    period: int = 1

    def __post_init__(self) -> None:
        _at_least_one("every", "period", self.period)

    @property
    def looks_every(self) -> int:
        return 0

    def due(self, moment: Moment) -> bool:
        return moment.since_sync >= self.period


@dataclass(frozen=True)
class BSP:
    """A round after every step."""

    @property
    def looks_every(self) -> int:
        return 0

    def due(self, moment: Moment) -> bool:
        return True


@dataclass(frozen=True)
class PostLocal:
    """A round after each of the first `start` steps, then after every `period` (Lin et al., 2018)."""

    start: int
    period: int

    def __post_init__(self) -> None:
        _at_least_one("post_local", "period", self.period)
        if self.start < 0:
            raise CompositionError(
                f"post_local: start must not be negative, got {self.start}; 0 is every({self.period})"
            )

    @property
    def looks_every(self) -> int:
        return 0

    def due(self, moment: Moment) -> bool:
        return moment.step < self.start or moment.since_sync >= self.period


@dataclass(frozen=True)
class Drift:
    """A round when workers have drifted by more than `above`, and after `most` steps at the latest.

    They look every `look` steps, which costs one message of two numbers. What is no number does not count.
    """

    above: float
    most: int = 64
    look: int = 1

    def __post_init__(self) -> None:
        _at_least_one("drift", "most", self.most)
        _at_least_one("drift", "look", self.look)
        if not self.above > 0:
            raise CompositionError(
                f"drift: above must be positive, got {self.above}; 0.01 is a hundredth of the weights"
            )

    @property
    def looks_every(self) -> int:
        return self.look

    def due(self, moment: Moment) -> bool:
        far = moment.drift is not None and math.isfinite(moment.drift) and moment.drift > self.above
        return far or moment.since_sync >= self.most


def period_bound(steps: int, workers: int) -> float:
    """The longest period that costs no convergence, T^(1/4) / N^(3/4) for T steps of N workers; below 1: none does."""
    if steps < 1 or workers < 1:
        raise CompositionError(f"period_bound: steps and workers must be at least 1, got {steps} and {workers}")
    return float(steps**0.25 / workers**0.75)


def _at_least_one(part: str, name: str, value: int) -> None:
    if value < 1:
        raise CompositionError(f"{part}: {name} must be at least 1, got {value}; 1 is after every step")
