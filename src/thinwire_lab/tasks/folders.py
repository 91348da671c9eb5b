"""Image folders such as ImageNet's, with ResNet-50 or ResNet-18."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from thinwire.core import CompositionError, Key

from ..data import ProgressCallback
from ..data.folders import ImageFolders, ImageList, decode_image, import_pillow, read_folders
from ..models.resnet import resnet18, resnet50
from .base import check_settings
from .crops import central_crop, draw_crop_numbers, random_crop
from .images import Channels, ImageTask
from .modules import count_parameters
from .splits import Split, split_rows

MODELS: dict[str, Callable[[int], nn.Module]] = {"resnet18": partial(resnet18, large=True), "resnet50": resnet50}
MIN_PIXELS = 32  # the network halves an image five times


@dataclass(frozen=True)
class ImageFolder(ImageTask):
    """Trains on all images of `set`/train and evaluates on up to `test_images` of `set`/val; batch is per worker."""

    at_once: ClassVar[int] = 50

    set: str = "imagenet"
    model: Literal["resnet18", "resnet50"] = "resnet50"
    pixels: int = 224
    batch: int = 32
    test_images: int = 2_000
    augment: bool = True  # random crops and mirroring; False: center crops
    folder: str | None = None

    def __post_init__(self) -> None:
        check_settings(self, "image_folder")
        if self.set in ("", ".", "..") or "/" in self.set or "\\" in self.set:
            raise CompositionError(f"image_folder: set must be the name of a folder such as imagenet, got {self.set!r}")
        if self.pixels < MIN_PIXELS:
            raise CompositionError(
                f"image_folder: pixels must be at least {MIN_PIXELS}, got {self.pixels}; 224 is usual"
            )

    def prepare(self, size: int, split: Split, on_progress: ProgressCallback | None = None) -> None:
        split_rows(self._labels().numpy(), size, split, seed=0)
        import_pillow()

    def describe(self) -> dict[str, Any]:
        data, measured = self._data, len(self._test_rows())
        with torch.device("meta"):
            model = self._model()
        return {
            "task": "image_folder", "set": self.set, "model": self.model, "parameters": count_parameters(model),
            "classes": len(data.classes), "examples": len(data.train.names), "test_examples": measured,
            "batch": self.batch, "pixels": self.pixels, "augment": self.augment, "data": data.origin,
            "cut": f"accuracy on {measured:,} of {len(data.val.names):,} validation images, evenly spaced",
        }  # fmt: skip

    @property
    def _data(self) -> ImageFolders:
        return read_folders(self.set, self.folder)

    def _model(self) -> nn.Module:
        return MODELS[self.model](len(self._data.classes))

    def _statistics(self) -> tuple[Channels, Channels]:
        return (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's

    def _labels(self) -> Tensor:
        return self._data.train.labels

    def _train_images(self, rows: Tensor, key: Key | None) -> Tensor:
        files = self._data.train
        if key is None:
            return self._center_crops(files, rows)
        pairs = zip(rows.tolist(), draw_crop_numbers(key, len(rows)), strict=True)
        images = [decode_image(files.path(row), self.pixels, partial(random_crop, draws=draws)) for row, draws in pairs]
        return torch.stack(images)

    def _test_labels(self) -> Tensor:
        return self._data.val.labels[self._test_rows()]

    def _test_images(self, rows: Tensor) -> Tensor:
        return self._center_crops(self._data.val, self._test_rows()[rows])

    def _center_crops(self, files: ImageList, rows: Tensor) -> Tensor:
        return torch.stack([decode_image(files.path(row), self.pixels, central_crop) for row in rows.tolist()])

    def _test_rows(self) -> Tensor:
        return spread_evenly(len(self._data.val.names), self.test_images)


def spread_evenly(count: int, wanted: int) -> Tensor:
    """`wanted` of `count` positions, or all, evenly spaced, because files are sorted by class."""
    taken = min(count, wanted)
    return torch.arange(taken) * count // taken
