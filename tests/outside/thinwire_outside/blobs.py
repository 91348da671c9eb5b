"""A task: two clouds of points and a linear classifier; seconds to train, nothing to download."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from thinwire.core import derive_key
from thinwire_lab.tasks.modules import ModuleLearner, evaluate


@dataclass(frozen=True)
class Blobs:
    """`dimension` coordinates, a gap of 2 between the clouds; batch is a worker's."""

    dimension: int = 16
    batch: int = 8

    smoothness = None

    def prepare(self, size: int, split: Any, tell: Any = None) -> None:
        pass  # data are drawn

    def learner(self, rank: int, size: int, split: Any, seed: int) -> ModuleLearner:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = nn.Linear(self.dimension, 2)
        test = self._draw(256, seed)
        return ModuleLearner(
            model,
            lambda step: self._draw(self.batch, derive_key("blobs", seed, rank, step) % 2**31),
            lambda model: dict(zip(("loss", "accuracy"), evaluate(model, [test]), strict=True)),
        )

    def describe(self) -> dict[str, Any]:
        return {
            "task": "blobs",
            "model": "linear",
            "examples": 1000,
            "batch": self.batch,
            "parameters": 2 * self.dimension,
        }

    def _draw(self, count: int, seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        labels = torch.randint(0, 2, (count,), generator=generator)
        return torch.randn(count, self.dimension, generator=generator) + 2.0 * labels[:, None] - 1.0, labels
