"""Protocols of tasks: a Task makes Learners, a Learner computes gradients and metrics for one worker."""

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
    """One worker's model and its shard of the data. Optimizer, exchange and seeds belong to the runner."""

    @property
    def parameters(self) -> dict[str, Tensor]:
        """Leaf tensors by name, in the order of the model; the optimizer updates them in place."""

    def gradients(self, step: int) -> tuple[float, dict[str, Tensor]]:
        """Loss of this step's batch and its gradients, a pure function of (weights, step).

        The examples of a batch and their augmentation depend only on (seed, rank, step), so that a resumed run sees the
        same batches. Running means of batch norms are updated; they are in `state_dict`.
        """

    def measure(self) -> dict[str, float]:
        """Metrics of the present weights: held-out loss, accuracy or perplexity; train_loss and grad_norm where cheap.

        Does not change training mode, buffers or random states.
        """

    def objective(self, step: int) -> Objective:
        """The loss of this step's batch as a function of the weights, for the importance solver."""

    def state_dict(self) -> dict[str, Any]:
        """State besides weights and optimizer, such as the buffers of batch norms."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Task(Protocol):
    """The settings of a task; checked when it is made."""

    def prepare(self, size: int, split: Split, on_progress: ProgressCallback | None = None) -> None:
        """Locate or download the data and check the split, before any worker starts."""

    def learner(self, rank: int, size: int, split: Split, seed: int) -> Learner:
        """The learner of a rank; all ranks start from the same weights, which depend only on the seed."""

    def describe(self) -> dict[str, Any]:
        """Facts for the report: examples, parameters, batch size, origin of the data, and how they were reduced."""

    @property
    def smoothness(self) -> float | None:
        """Smoothness L of the training loss, if known."""


def check_settings(task: Any, name: str) -> None:
    """Raise CompositionError for the first setting that has not its declared type, or is an integer below 1.

    The task checks the range of floats.
    """
    hints = typing.get_type_hints(type(task))
    for setting in fields(task):
        value, hint = getattr(task, setting.name), hints[setting.name]
        if not has_type(value, hint):
            raise CompositionError(f"{name}: {setting.name} must be {type_in_words(hint)}, got {value!r}")
        if isinstance(value, int) and not isinstance(value, bool) and int in union_members(hint) and value < 1:
            raise CompositionError(f"{name}: {setting.name} must be at least 1, got {value}")
