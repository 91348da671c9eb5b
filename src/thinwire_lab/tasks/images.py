"""Base class of image tasks; CIFAR-10 and CIFAR-100 with a small CNN, a slim ResNet or ResNet-18."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from thinwire.core import Key, derive_key

from ..data import ProgressCallback, load
from ..data.cifar import Images, read_cifar, select_files
from ..models.cnn import CNN
from ..models.initialization import initialize
from ..models.resnet import resnet18, slim_resnet
from .base import check_settings
from .batches import batch_positions, crop_and_flip
from .modules import Batch, ModuleLearner, count_parameters, evaluate
from .splits import Split, split_rows

_AUGMENT_KEY = "augment"  # frozen: makes the random bits

MODELS: dict[str, Callable[[int], nn.Module]] = {
    "cnn": CNN, "small cnn": partial(CNN, width=16), "slim": slim_resnet, "resnet18": resnet18,
}  # fmt: skip
Channels = tuple[float, float, float]


class ImageTask:
    """Base class of image tasks: subclasses define the images and the model."""

    batch: int
    augment: bool
    at_once: ClassVar[int] = 500  # batch size of evaluation

    @property
    def smoothness(self) -> None:
        return None

    def learner(self, rank: int, size: int, split: Split, seed: int) -> ModuleLearner:
        labels, statistics = self._labels(), self._statistics()
        rows = torch.from_numpy(split_rows(labels.numpy(), size, split, seed)[rank])

        def batch(step: int) -> Batch:
            chosen = rows[batch_positions(step, self.batch, len(rows), seed, rank)]
            key = derive_key(seed, _AUGMENT_KEY, rank, step) if self.augment else None
            return normalize(self._train_images(chosen, key), *statistics), labels[chosen]

        return ModuleLearner(initialize(self._model, seed), batch, self._figures)

    def _figures(self, model: nn.Module) -> dict[str, float]:
        labels, statistics = self._test_labels(), self._statistics()

        def batches() -> Iterator[Batch]:
            for at in range(0, len(labels), self.at_once):
                rows = torch.arange(at, min(at + self.at_once, len(labels)))
                yield normalize(self._test_images(rows), *statistics), labels[rows]

        loss, accuracy = evaluate(model, batches())
        return {"loss": loss, "accuracy": accuracy}

    def _model(self) -> nn.Module:
        raise NotImplementedError

    def _statistics(self) -> tuple[Channels, Channels]:
        """Mean and standard deviation of each channel, for pixels from 0 to 1."""
        raise NotImplementedError

    def _labels(self) -> Tensor:
        """Labels of all training images, (n,)."""
        raise NotImplementedError

    def _train_images(self, rows: Tensor, key: Key | None) -> Tensor:
        """Bytes (rows, 3, height, width), augmented with the key if there is one."""
        raise NotImplementedError

    def _test_labels(self) -> Tensor:
        raise NotImplementedError

    def _test_images(self, rows: Tensor) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class Cifar10(ImageTask):
    """Trains on the first `images` of 50,000, evaluates on the first `test_images` of 10,000; batch is per worker."""

    classes: ClassVar[int] = 10

    model: Literal["cnn", "small cnn", "slim", "resnet18"] = "slim"
    images: int = 10_000
    test_images: int = 2_000
    batch: int = 128
    augment: bool = True  # shifts of up to four pixels and mirroring
    folder: str | None = None

    def __post_init__(self) -> None:
        check_settings(self, f"cifar{self.classes}")

    def prepare(self, size: int, split: Split, on_progress: ProgressCallback | None = None) -> None:
        load(
            *select_files(self.classes, self.images), self.folder, on_progress
        )  # downloads with progress; `_data` reads it afterwards
        split_rows(self._data.train_labels.numpy(), size, split, seed=0)

    def describe(self) -> dict[str, Any]:
        data = self._data
        with torch.device("meta"):
            model = self._model()
        return {
            "task": f"cifar{self.classes}", "model": self.model, "parameters": count_parameters(model),
            "classes": self.classes, "examples": self.images, "test_examples": self.test_images, "batch": self.batch,
            "augment": self.augment, "data": data.origin,
            "cut": f"{self.images:,} of 50,000 images, accuracy on {self.test_images:,} of 10,000 test images",
        }  # fmt: skip

    @property
    def _data(self) -> Images:
        return read_cifar(self.classes, self.images, self.test_images, self.folder)

    def _model(self) -> nn.Module:
        return MODELS[self.model](self.classes)

    def _statistics(self) -> tuple[Channels, Channels]:
        return self._data.mean, self._data.deviation

    def _labels(self) -> Tensor:
        return self._data.train_labels

    def _train_images(self, rows: Tensor, key: Key | None) -> Tensor:
        images = self._data.train[rows]
        return images if key is None else crop_and_flip(images, key)

    def _test_labels(self) -> Tensor:
        return self._data.test_labels

    def _test_images(self, rows: Tensor) -> Tensor:
        return self._data.test[rows]


@dataclass(frozen=True)
class Cifar100(Cifar10):
    """CIFAR-100 with fine labels; otherwise as CIFAR-10."""

    classes: ClassVar[int] = 100


def normalize(images: Tensor, mean: Channels, deviation: Channels) -> Tensor:
    """Convert bytes to floats with mean 0 and standard deviation 1 in each channel of the training set.

    Memory format channels_last, with which the convolutions of residual networks take a quarter less time.
    """
    middle, scale = (255 * torch.tensor(numbers).view(3, 1, 1) for numbers in (mean, deviation))
    return (images.to(torch.float32, memory_format=torch.channels_last) - middle) / scale
