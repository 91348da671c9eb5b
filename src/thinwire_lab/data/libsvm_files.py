"""LIBSVM files: a9a (LIBSVM's version of UCI Adult) with its test set, and any file with two labels."""

from __future__ import annotations

import bz2
import lzma
import re
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .datasets import Checksum, DataError, DataSet, load
from .libsvm import parse_libsvm

Numbers = NDArray[np.float64]
_URL = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary"

A9A = DataSet(
    title="a9a (LIBSVM)",
    folder="",
    files={
        "a9a": Checksum(2_327_314, "7ba53cccb27e2e525f0fb173e1f446d49856e3fb007eb43be4ec6d0f5b3335ca"),
        "a9a.t": Checksum(1_164_628, "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9"),
    },
    urls={"a9a": f"{_URL}/a9a", "a9a.t": f"{_URL}/a9a.t"},
)
A9A_FEATURES = 123
_MAX_NUMBERS = 250_000_000  # 2 GB as float64


@lru_cache(maxsize=1)
def read_a9a(folder: str | None = None) -> tuple[Numbers, Numbers, Numbers, Numbers, str]:
    """Features and labels (0 or 1; 1 is an income above 50K) of the training and of the test set, and their origin."""
    loaded = load(A9A, ["a9a", "a9a.t"], folder)
    train, test = (parse_libsvm(loaded.files[name].decode("ascii"), A9A_FEATURES) for name in ("a9a", "a9a.t"))
    return train[0], binarize_labels(train[1], "a9a"), test[0], binarize_labels(test[1], "a9a.t"), loaded.origin


@lru_cache(maxsize=1)
def read_libsvm(path: str) -> tuple[Numbers, Numbers]:
    """Dense features and labels (the smaller is 0, the larger 1) of a LIBSVM file, also .bz2 or .xz."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise DataError(f"{path}: no such file; data must be mushrooms, a9a, or the path of a LIBSVM file")
    content = file.read_bytes()
    try:
        if file.suffix in (".bz2", ".xz"):
            content = bz2.decompress(content) if file.suffix == ".bz2" else lzma.decompress(content)
        text = content.decode("ascii")
        columns = max(map(int, re.findall(r"(\d+):", text)), default=1)
        rows = text.count("\n") + 1
        if rows * columns > _MAX_NUMBERS:
            raise DataError(f"{path}: {rows:,} rows of {columns:,} columns are too many for a dense matrix (2 GB)")
        features, labels = parse_libsvm(text, columns)
    except DataError:
        raise
    except (OSError, EOFError, lzma.LZMAError, ValueError) as error:
        raise DataError(f"{path} is not a LIBSVM file: {error}") from error
    return features, binarize_labels(labels, path)


def binarize_labels(labels: Numbers, what: str) -> Numbers:
    """Map the smaller label to 0 and the larger to 1; DataError unless there are exactly two."""
    kinds = np.unique(labels)
    if len(kinds) != 2:
        raise DataError(
            f"{what}: logistic regression needs two labels, this file has {len(kinds)}: {kinds[:5].tolist()}"
        )
    result: Numbers = (labels == kinds[1]).astype(np.float64)
    return result
