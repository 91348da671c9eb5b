"""Tiny data sets in the official layouts, with the SHA256SUMS that make a folder's own version of a set welcome."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from thinwire_lab.models.resnet import ResNet

LETTERS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "<unk>", "."]


def sums(folder: Path) -> None:
    """SHA256SUMS of all files of a folder."""
    lines = [f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.name}" for f in sorted(folder.iterdir()) if f.is_file()]
    (folder / "SHA256SUMS").write_text("\n".join(lines) + "\n")


def cifar_rows(count: int, classes: int, seed: int) -> np.ndarray:
    """Rows of the binary version: labels in turn, pixels brighter for higher labels, so that they can be learnt."""
    numbers = np.random.RandomState(seed)
    label = np.arange(count) % classes
    pixels = numbers.randint(0, 128, (count, 3072)) + (128 * label[:, None] // classes)
    coarse = [] if classes == 10 else [label[:, None] // 5]
    return np.hstack([*coarse, label[:, None], pixels]).astype(np.uint8)


def write_cifar(folder: Path, classes: int = 10, per_file: int = 20) -> Path:
    inside = folder / ("cifar-10-batches-bin" if classes == 10 else "cifar-100-binary")
    inside.mkdir(parents=True)
    train = [f"data_batch_{k}.bin" for k in range(1, 6)] if classes == 10 else ["train.bin"]
    for seed, name in enumerate([*train, "test_batch.bin" if classes == 10 else "test.bin"]):
        (inside / name).write_bytes(cifar_rows(per_file, classes, seed).tobytes())
    sums(inside)
    return folder


def write_wikitext(folder: Path, lines: int = 60, name: str = "wikitext-2") -> Path:
    inside = folder / name
    inside.mkdir(parents=True)
    numbers = np.random.RandomState(0)
    for name, count in (("train", lines), ("valid", lines // 3)):
        text = [" " + " ".join(numbers.choice(LETTERS, 7)) + " \n" for _ in range(count)]
        (inside / f"wiki.{name}.tokens").write_text("".join(text), encoding="utf-8")
    sums(inside)
    return folder


def write_shakespeare(folder: Path, length: int = 2000) -> Path:
    inside = folder / "tiny-shakespeare"
    inside.mkdir(parents=True)
    (inside / "input.txt").write_text(("To be, or not to be:\n" * length)[:length])
    sums(inside)
    return folder


def write_images(folder: Path, name: str = "imagenet", classes: int = 3, train: int = 8, val: int = 4) -> Path:
    """Images of many sizes, brighter for higher classes. Needs Pillow."""
    from PIL import Image

    numbers = np.random.RandomState(0)
    for half, count in (("train", train), ("val", val)):
        for kind in range(classes):
            inside = folder / name / half / f"class{kind}"
            inside.mkdir(parents=True)
            for at in range(count):
                height, width = numbers.randint(20, 60, 2)
                pixels = numbers.randint(0, 128, (height, width, 3)) + 128 * kind // classes
                image = Image.fromarray(pixels.astype(np.uint8))
                image.save(inside / f"{at:02d}{('.png', '.JPEG', '.jpg')[at % 3]}")
    return folder


def tiny_resnet(classes: int) -> ResNet:
    """Like ResNet-18 for large images, with five thousand parameters instead of eleven million."""
    return ResNet(classes, 8, (8, 16), large=True)


def write_a9a(folder: Path, rows: int = 60) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    numbers = np.random.RandomState(0)
    for name in ("a9a", "a9a.t"):
        lines = []
        for row in range(rows):
            columns = sorted(numbers.choice(123, 14, replace=False) + 1)
            lines.append(f"{'+1' if row % 4 == 0 else '-1'} " + " ".join(f"{column}:1" for column in columns))
        (folder / name).write_text("\n".join(lines) + "\n")
    sums(folder)
    return folder
