"""What the runner knows of a task: settings that make learners, and learners that give gradients."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Protocol

from torch import Tensor

from thinwire.core import CompositionError, union_members
from thinwire.importance import Objective

from ..data import ProgressCallback
from ..tables import has_type, type_in_words
from .splits import Split


class Learner(Protocol):
    """One worker's model and its share of the data. The runner owns optimizer, exchange and seeds."""

    @property
    def parameters(self) -> dict[str, Tensor]:
        """Leaf tensors by name, in the order of the model; an optimizer changes them in place."""

    def gradients(self, step: int) -> tuple[float, dict[str, Tensor]]:
        """Loss of this step's batch and its gradients, a pure function of (weights, step).

        Which examples a batch has and their augmentation follow from (seed, rank, step) alone, so that a resumed run
        sees the same. Batch norms' running means move on; they are in `state_dict` and no part of the gradient.
        """

    def measure(self) -> dict[str, float]:
        """Figures with the present weights: loss, accuracy or perplexity held out; train_loss, grad_norm where cheap.

        Leaves no trace: flags, buffers and random states are as before.
        """

    def objective(self, step: int) -> Objective:
        """This step's loss as a function of the weights, for the importance solver."""

    def state_dict(self) -> dict[str, Any]:
        """What is neither weight nor optimizer: batch norms' buffers; often nothing."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Task(Protocol):
    """Settings of a task, checked when they are put together."""

    def prepare(self, size: int, split: Split, on_progress: ProgressCallback | None = None) -> None:
        """Find or download the data and refuse what cannot be, before any worker starts."""

    def learner(self, rank: int, size: int, split: Split, seed: int) -> Learner:
        """Rank's learner; all ranks start from the same weights, which follow from the seed."""

    def describe(self) -> dict[str, Any]:
        """Plain facts for the report: examples, parameters, batch, where the data are from and what was cut."""

    @property
    def smoothness(self) -> float | None:
        """L of the whole training loss where it is known."""


def check_settings(task: Any, name: str) -> None:
    """Raise CompositionError for the first setting that is not of its declared type, or not positive where it counts.

    Whole numbers must be at least 1. Numbers with a fraction are left to the task.
    """
    hints = typing.get_type_hints(type(task))
    for setting in fields(task):
        value, hint = getattr(task, setting.name), hints[setting.name]
        if not has_type(value, hint):
            raise CompositionError(f"{name}: {setting.name} must be {type_in_words(hint)}, got {value!r}")
        if isinstance(value, int) and not isinstance(value, bool) and int in union_members(hint) and value < 1:
            raise CompositionError(f"{name}: {setting.name} must be at least 1, got {value}")
