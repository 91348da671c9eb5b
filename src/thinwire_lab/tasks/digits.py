"""Handwritten digits (UCI, embedded) with an MLP: no download, trains in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from thinwire.core import derive_key

from ..data import ProgressCallback
from ..data.digits import read_digits
from ..models.initialization import initialize
from ..models.mlp import mlp
from .base import check_settings
from .batches import batch_positions, permutation
from .modules import Batch, ModuleLearner, count_parameters, evaluate
from .splits import Split, split_rows

_TEST_SPLIT_KEY = ("digits", "test")  # frozen: makes the random bits

TEST = 360  # of 1,797 images; the same for every seed


@dataclass(frozen=True)
class Digits:
    """An MLP with two hidden layers of `width`; batch: examples per worker and step."""

    width: int = 128
    batch: int = 32
    folder: str | None = None  # not used: the digits are embedded

    def __post_init__(self) -> None:
        check_settings(self, "digits")

    @property
    def smoothness(self) -> None:
        return None

    def prepare(self, size: int, split: Split, on_progress: ProgressCallback | None = None) -> None:
        split_rows(_digits()[1].numpy(), size, split, seed=0)

    def learner(self, rank: int, size: int, split: Split, seed: int) -> ModuleLearner:
        pixels, labels, test, test_labels = _digits()
        rows = torch.from_numpy(split_rows(labels.numpy(), size, split, seed)[rank])

        def batch(step: int) -> Batch:
            chosen = rows[batch_positions(step, self.batch, len(rows), seed, rank)]
            return pixels[chosen], labels[chosen]

        def figures(model: nn.Module) -> dict[str, float]:
            loss, accuracy = evaluate(model, [(test, test_labels)])
            return {"loss": loss, "accuracy": accuracy, "train_loss": evaluate(model, [(pixels, labels)])[0]}

        return ModuleLearner(initialize(lambda: mlp(64, self.width, 10), seed), batch, figures)

    def describe(self) -> dict[str, Any]:
        return {
            "task": "digits", "model": f"MLP 64-{self.width}-{self.width}-10",
            "parameters": count_parameters(mlp(64, self.width, 10)), "classes": 10, "examples": 1797 - TEST,
            "test_examples": TEST, "batch": self.batch, "data": "handwritten digits (embedded)", "cut": "",
        }  # fmt: skip


def _digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training pixels and labels, test pixels and labels."""
    pixels, labels = map(torch.from_numpy, read_digits())
    places = permutation(derive_key(*_TEST_SPLIT_KEY), len(labels))
    test, train = places[:TEST].sort().values, places[TEST:].sort().values
    return pixels[train], labels[train], pixels[test], labels[test]
