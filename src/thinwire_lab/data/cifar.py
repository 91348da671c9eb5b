"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009), binary version: label bytes, then 3072 bytes of red, green and blue.

The Python version is pickled and is not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .datasets import Archive, Checksum, DataError, DataSet, load

PIXELS = 3 * 32 * 32
_PER_FILE = 10_000
_URL = "https://www.cs.toronto.edu/~kriz"
_BATCH = _PER_FILE * (1 + PIXELS)  # bytes of one of CIFAR-10's files

CIFAR10 = DataSet(
    title="CIFAR-10 (binary version)",
    folder="cifar-10-batches-bin",
    files={
        "data_batch_1.bin": Checksum(_BATCH, "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
        "data_batch_2.bin": Checksum(_BATCH, "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
        "data_batch_3.bin": Checksum(_BATCH, "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
        "data_batch_4.bin": Checksum(_BATCH, "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
        "data_batch_5.bin": Checksum(_BATCH, "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
        "test_batch.bin": Checksum(_BATCH, "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
    },
    archive=Archive(
        f"{_URL}/cifar-10-binary.tar.gz",
        Checksum(170_052_171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),
    ),
)
CIFAR100 = DataSet(
    title="CIFAR-100 (binary version)",
    folder="cifar-100-binary",
    files={
        "train.bin": Checksum(153_700_000, "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29"),
        "test.bin": Checksum(30_740_000, "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a"),
    },
    archive=Archive(
        f"{_URL}/cifar-100-binary.tar.gz",
        Checksum(168_513_733, "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"),
    ),
)


@dataclass(frozen=True, eq=False)
class Images:
    """The first images of the training and of the test set, in the official (random) order."""

    train: Tensor  # (n, 3, 32, 32) bytes
    train_labels: Tensor  # (n,) int64
    test: Tensor
    test_labels: Tensor
    classes: int
    mean: tuple[float, float, float]  # of the training pixels / 255, by channel
    deviation: tuple[float, float, float]
    origin: str


def select_files(classes: int, images: int) -> tuple[DataSet, list[str]]:
    """The data set with `classes` classes, and the files with its first `images` images and its test set."""
    data = CIFAR10 if classes == 10 else CIFAR100
    *train, test = data.files
    return data, [*train[: -(-images // _PER_FILE)], test]


@lru_cache(maxsize=2)
def read_cifar(classes: int, images: int, test_images: int, folder: str | None = None) -> Images:
    """CIFAR-10, or CIFAR-100 with fine labels. Cached: all workers of a process share one copy."""
    data, names = select_files(classes, images)
    rows, origin = _read_rows(data, names, folder)
    if sum(map(len, rows[:-1])) < images:  # the files have fewer images than the official ones
        rows, origin = _read_rows(data, list(data.files), folder)
    train, test = np.concatenate(rows[:-1]), rows[-1]
    first, second = _take_first(train, images, data, "training"), _take_first(test, test_images, data, "test")
    mean, deviation = (
        ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
        if classes == 10
        else ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
    )
    return Images(
        *_split_columns(first, classes, data), *_split_columns(second, classes, data), classes, mean, deviation, origin
    )


def _read_rows(data: DataSet, names: list[str], folder: str | None) -> tuple[list[NDArray[np.uint8]], str]:
    """The rows of each file and their origin."""
    loaded = load(data, names, folder)
    width = PIXELS + (1 if data is CIFAR10 else 2)
    for name, content in loaded.files.items():
        if len(content) % width or not content:
            raise DataError(
                f"{data.title}: {name} has {len(content):,} bytes, which is not a multiple of the row size {width}"
            )
    return [np.frombuffer(loaded.files[name], np.uint8).reshape(-1, width) for name in names], loaded.origin


def _take_first(rows: NDArray[np.uint8], count: int, data: DataSet, what: str) -> NDArray[np.uint8]:
    if count > len(rows):
        raise DataError(f"{data.title}: {count:,} {what} images are requested, there are {len(rows):,}")
    return rows[:count]


def _split_columns(rows: NDArray[np.uint8], classes: int, data: DataSet) -> tuple[Tensor, Tensor]:
    labels = rows[:, -PIXELS - 1].astype(np.int64)  # the fine label of CIFAR-100 comes after the coarse one
    if labels.max() >= classes:
        raise DataError(
            f"{data.title}: a row has label {labels.max()}, there are {classes} classes; download the files again"
        )
    pixels = np.ascontiguousarray(rows[:, -PIXELS:]).reshape(-1, 3, 32, 32)
    return torch.from_numpy(pixels), torch.from_numpy(labels)
