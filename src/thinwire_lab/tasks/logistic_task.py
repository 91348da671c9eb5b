"""The task `logistic`: logistic regression on the mushrooms, a9a, or a LIBSVM file with two labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from thinwire.core import CompositionError
from thinwire.importance import FunctionObjective, Objective, Point

from ..data import ProgressCallback, load
from ..data.libsvm_files import A9A, read_a9a, read_libsvm
from .base import check_settings
from .batches import batch_positions
from .logistic import Logistic, hold_out, mushrooms, select_rows
from .splits import Split, split_rows

Problems = tuple[Logistic, Logistic, str]  # training problem, test problem, origin of the rows


@dataclass(frozen=True)
class LogisticTask:
    """Logistic regression with a ridge; starts from zero weights.

    Args:
        data: "mushrooms", "a9a", or the path of a LIBSVM file.
        ridge: coefficient of the L2 regularization.
        held_out: fraction of the rows for testing; 0: accuracy is measured on the training rows. a9a has a test set.
        batch: rows per worker and step; None: all rows of the worker (full gradients).
        dtype: "float32" or "float64".
        held_out_seed: draws the held-out rows, which are the same for all seeds of a run.
        folder: of the data of a9a.
    """

    data: str = "mushrooms"
    ridge: float = 1e-3
    held_out: float = 0.0
    batch: int | None = None
    dtype: Literal["float32", "float64"] = "float32"
    held_out_seed: int = 1
    folder: str | None = None

    def __post_init__(self) -> None:
        check_settings(self, "logistic")
        if not 0 <= self.held_out < 1:
            raise CompositionError(
                f"logistic: held_out must be in [0, 1), got {self.held_out}; 0.2 holds out a fifth of the rows"
            )
        if not 0 <= self.ridge < float("inf"):
            raise CompositionError(f"logistic: ridge must be at least 0, got {self.ridge}; 0.001 is usual")
        if self.data == "a9a" and self.held_out:
            raise CompositionError(f"logistic: a9a has a test set of its own; held_out must be 0, got {self.held_out}")

    @property
    def smoothness(self) -> float:
        return self._problems()[0].smoothness

    def prepare(self, size: int, split: Split, on_progress: ProgressCallback | None = None) -> None:
        if self.data == "a9a":
            load(A9A, list(A9A.files), self.folder, on_progress)
        split_rows(self._problems()[0].labels.numpy(), size, split, seed=0)

    def learner(self, rank: int, size: int, split: Split, seed: int) -> LogisticLearner:
        train, test, _ = self._problems()
        share = select_rows(train, split_rows(train.labels.numpy(), size, split, seed)[rank])
        return LogisticLearner(share, train, test, self.batch, seed, rank)

    def describe(self) -> dict[str, Any]:
        train, test, origin = self._problems()
        apart = test is not train
        return {
            "task": "logistic", "model": "logistic regression", "parameters": train.features.shape[1], "classes": 2,
            "examples": len(train.labels), "test_examples": len(test.labels) if apart else 0,
            "batch": self.batch or "all of a worker's rows", "ridge": self.ridge, "data": origin,
            "cut": "" if apart else "nothing held out: accuracy is that on the training rows",
        }  # fmt: skip

    def _problems(self) -> Problems:
        return _problems(self.data, self.ridge, self.held_out, self.dtype, self.held_out_seed, self.folder)


class LogisticLearner:
    """One worker's rows. `measure` uses all rows: training loss and gradient norm, held-out loss and accuracy."""

    def __init__(
        self, share: Logistic, train: Logistic, test: Logistic, batch: int | None, seed: int, rank: int
    ) -> None:
        self.share, self.train, self.test = share, train, test
        self._batch, self._seed, self._rank = batch, seed, rank
        self._weights = torch.zeros(share.features.shape[1], dtype=share.features.dtype)
        self.parameters: dict[str, Tensor] = {"weights": self._weights}

    def gradients(self, step: int) -> tuple[float, dict[str, Tensor]]:
        loss, gradient = self._problem(step).loss_and_gradient(self._weights)
        return float(loss), {"weights": gradient}

    def measure(self) -> dict[str, float]:
        loss, gradient = self.train.loss_and_gradient(self._weights)
        apart = self.test is not self.train
        return {
            "loss": float(self.test.loss(self._weights) if apart else loss),
            "train_loss": float(loss),
            "grad_norm": float(gradient.norm()),
            "accuracy": float(self.test.accuracy(self._weights)),
        }

    def objective(self, step: int) -> Objective:
        problem = self._problem(step)

        def gradient(at: Point) -> Point:
            return {"weights": problem.gradient(at["weights"])}

        return FunctionObjective(lambda at: problem.loss(at["weights"]), gradient)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state:
            raise CompositionError(
                f"logistic: there is no state besides the weights, the stored state has {sorted(state)}"
            )

    def _problem(self, step: int) -> Logistic:
        if self._batch is None:
            return self.share
        rows = batch_positions(step, self._batch, len(self.share.labels), self._seed, self._rank)
        return select_rows(self.share, rows)


@lru_cache(maxsize=4)
def _problems(data: str, ridge: float, held_out: float, dtype: str, seed: int, folder: str | None) -> Problems:
    kind = torch.float64 if dtype == "float64" else torch.float32
    if data == "a9a":
        *arrays, origin = read_a9a(folder)
        features, labels, test_features, test_labels = (torch.tensor(numbers, dtype=kind) for numbers in arrays)
        return Logistic(features, labels, ridge), Logistic(test_features, test_labels, ridge), origin
    if data == "mushrooms":
        whole, origin = mushrooms(ridge, kind), "embedded (UCI Mushroom)"
    else:
        features, labels = (torch.tensor(numbers, dtype=kind) for numbers in read_libsvm(data))
        whole, origin = Logistic(features, labels, ridge), data
    return (*(hold_out(whole, held_out, seed) if held_out else (whole, whole)), origin)
