"""CIFAR-10 and CIFAR-100: a small CNN, a slim ResNet or ResNet-18."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ...core import derive_key
from ..data import Tell, load
from ..data.cifar import Images, files_of, read_cifar
from ..models.cnn import CNN
from ..models.initial import initialised
from ..models.resnet import resnet18, slim_resnet
from .base import check_settings
from .batches import batch_positions, cropped_and_flipped
from .modules import Batch, ModuleLearner, count_parameters, held_out
from .splits import Split, shares

MODELS: dict[str, Callable[[int], nn.Module]] = {
    "cnn": CNN, "small cnn": partial(CNN, width=16), "slim": slim_resnet, "resnet18": resnet18,
}  # fmt: skip
_EVAL = 500  # images at a time when measuring


@dataclass(frozen=True)
class Cifar10:
    """The first `images` of 50,000 to train on, the first `test_images` of 10,000 to measure; batch is a worker's."""

    classes: ClassVar[int] = 10

    model: Literal["cnn", "small cnn", "slim", "resnet18"] = "slim"
    images: int = 10_000
    test_images: int = 2_000
    batch: int = 128
    augment: bool = True  # moved by up to four pixels, mirrored or not
    folder: str | None = None

    def __post_init__(self) -> None:
        check_settings(self, f"cifar{self.classes}")

    @property
    def smoothness(self) -> None:
        return None

    def prepare(self, size: int, split: Split, tell: Tell | None = None) -> None:
        load(*files_of(self.classes, self.images), self.folder, tell)  # with progress; the reader finds it afterwards
        shares(self._data.train_labels.numpy(), size, split, seed=0)

    def learner(self, rank: int, size: int, split: Split, seed: int) -> ModuleLearner:
        data = self._data
        rows = torch.from_numpy(shares(data.train_labels.numpy(), size, split, seed)[rank])

        def batch(step: int) -> Batch:
            chosen = rows[batch_positions(step, self.batch, len(rows), seed, rank)]
            images = data.train[chosen]
            if self.augment:
                images = cropped_and_flipped(images, derive_key(seed, "augment", rank, step))
            return normalised(images, data), data.train_labels[chosen]

        model = initialised(lambda: MODELS[self.model](self.classes), seed)
        return ModuleLearner(model, batch, self._figures)

    def about(self) -> dict[str, Any]:
        data = self._data
        with torch.device("meta"):
            model = MODELS[self.model](self.classes)
        return {
            "task": f"cifar{self.classes}", "model": self.model, "parameters": count_parameters(model),
            "classes": self.classes, "examples": self.images, "test_examples": self.test_images, "batch": self.batch,
            "augment": self.augment, "data": data.origin,
            "cut": f"{self.images:,} of 50,000 images, accuracy on {self.test_images:,} of 10,000 test images",
        }  # fmt: skip

    @property
    def _data(self) -> Images:
        return read_cifar(self.classes, self.images, self.test_images, self.folder)

    def _figures(self, model: nn.Module) -> dict[str, float]:
        data = self._data

        def batches() -> Iterator[Batch]:
            for at in range(0, len(data.test), _EVAL):
                yield normalised(data.test[at : at + _EVAL], data), data.test_labels[at : at + _EVAL]

        loss, accuracy = held_out(model, batches())
        return {"loss": loss, "accuracy": accuracy}


@dataclass(frozen=True)
class Cifar100(Cifar10):
    """The same with a hundred classes, the fine labels."""

    classes: ClassVar[int] = 100


def normalised(images: Tensor, data: Images) -> Tensor:
    """Bytes -> floats with mean 0 and deviation 1 in each channel, over the training set.

    Channels last in memory: convolutions of residual networks then take a quarter less time.
    """
    mean, deviation = (torch.tensor(numbers).view(3, 1, 1) for numbers in (data.mean, data.deviation))
    wide = images.to(torch.float32, memory_format=torch.channels_last)
    return (wide - 255 * mean) / (255 * deviation)
