"""The user's images in folders SET/train/CLASS/* and SET/val/CLASS/*, decoded when a batch needs them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from thinwire.core import MissingExtra

from .datasets import VARIABLE, DataError, cache_folder, describe_folders, search_folders

SUFFIXES = (".jpg", ".jpeg", ".png")
MAX_PIXELS = 1 << 26  # 200 MB decoded; protects against files that declare huge sizes
LAYOUT = "train/CLASS/IMAGE and val/CLASS/IMAGE, images being .jpg, .jpeg or .png"


class Crop(NamedTuple):
    """A rectangle of an image, in pixels from its upper left corner."""

    left: float
    top: float
    right: float
    bottom: float
    mirrored: bool = False


ChooseCrop = Callable[[int, int], Crop]  # width, height -> rectangle


@dataclass(frozen=True, eq=False)
class ImageList:
    """The files of train or val, sorted by class and name."""

    folder: Path
    classes: tuple[str, ...]  # of the training set
    names: tuple[str, ...]  # without folder; the label gives it
    labels: Tensor  # (n,) int64

    def path(self, row: int) -> Path:
        return self.folder / self.classes[int(self.labels[row])] / self.names[row]


@dataclass(frozen=True, eq=False)
class ImageFolders:
    """Training and validation images, listed but not decoded."""

    train: ImageList
    val: ImageList

    @property
    def classes(self) -> tuple[str, ...]:
        return self.train.classes

    @property
    def origin(self) -> str:
        count = len(self.train.names) + len(self.val.names)
        return f"the user's own images in {self.train.folder.parent}, {count:,} of them, not checked"


def find_images(name: str, folder: str | Path | None = None) -> Path | None:
    """The folder of the set, None if there is none; DataError if it has no train or val folder."""
    for place in search_folders(folder):
        found = place / name
        if found.is_dir():
            if gone := [half for half in ("train", "val") if not (found / half).is_dir()]:
                raise DataError(
                    f"image folder {found} has no folder {' and no folder '.join(gone)}; expected: {LAYOUT}"
                )
            return found
    return None


@lru_cache(maxsize=2)
def read_folders(name: str, folder: str | None = None) -> ImageFolders:
    """List the images of a set. Cached: all workers of a process share one list."""
    found = find_images(name, folder)
    if found is None:
        raise DataError(describe_missing_images(name, search_folders(folder)))
    classes = _subfolders(found / "train")
    if len(classes) < 2:
        raise DataError(
            f"image folder {found / 'train'} has {len(classes)} classes, at least 2 are needed; expected: {LAYOUT}"
        )
    if unknown := sorted(set(_subfolders(found / "val")) - set(classes)):
        raise DataError(f"image folder {found / 'val'} has classes that train does not have: {', '.join(unknown[:5])}")
    return ImageFolders(_list_images(found / "train", classes), _list_images(found / "val", classes))


def describe_missing_images(name: str, tried: Sequence[Path]) -> str:
    lines = [
        f"image folder {name}: not found in {describe_folders(tried)}; expected: {name} with {LAYOUT}.",
        "It is never downloaded. Three ways to provide it:",
        f"  1. put or link it into {cache_folder()};",
        "  2. use a folder that contains it: --data FOLDER;",
        f"  3. set {VARIABLE}=FOLDER.",
    ]
    return "\n".join(lines)


def _subfolders(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")))


def _list_images(folder: Path, classes: tuple[str, ...]) -> ImageList:
    names: list[str] = []
    counts = []
    for kind in classes:
        inside = folder / kind
        if not inside.is_dir():  # val may have no images of a class
            counts.append(0)
            continue
        here = sorted(path.name for path in inside.iterdir() if _is_image(path))
        if not here:
            raise DataError(f"image folder {inside} is empty: it has no .jpg, .jpeg or .png; fill or remove it")
        names += here
        counts.append(len(here))
    if not names:
        raise DataError(f"image folder {folder} has no images; expected: {LAYOUT}")
    return ImageList(folder, classes, tuple(names), torch.from_numpy(np.repeat(np.arange(len(classes)), counts)))


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()


def import_pillow() -> Any:
    """The module PIL.Image, or MissingExtra."""
    try:
        return importlib.import_module("PIL.Image")  # by name, because it is an optional dependency
    except ImportError as error:
        raise MissingExtra(
            f"image folders: Pillow, which decodes images, cannot be imported ({error}); "
            "install it with: pip install 'thinwire[images]'"
        ) from error


def decode_image(path: Path, pixels: int, choose_crop: ChooseCrop) -> Tensor:
    """Decode the chosen crop of an image to (3, pixels, pixels) bytes, RGB."""
    images = import_pillow()
    try:
        with images.open(path, formats=("JPEG", "PNG")) as opened:
            width, height = opened.size
            if width * height <= MAX_PIXELS:
                crop = choose_crop(width, height)
                small = opened.convert("RGB").resize((pixels, pixels), images.Resampling.BILINEAR, box=crop[:4])
    except Exception as error:  # a broken file makes decoders fail in many ways
        raise DataError(f"{path} cannot be decoded as an image ({error}); repair or remove it") from error
    if width * height > MAX_PIXELS:
        raise DataError(f"{path} has {width:,} x {height:,} pixels, more than the {MAX_PIXELS:,} allowed; remove it")
    rows = torch.from_numpy(np.array(small)).permute(2, 0, 1)
    return rows.flip(2) if crop.mirrored else rows
