"""Handwritten digits (Alpaydin and Kaynak, 1998; the test set of UCI's): 1,797 images of 8 x 8. Embedded, see
ATTRIBUTION.md; the same rows in the same order as scikit-learn's load_digits."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .embedded import read_embedded_text

FILE = "digits.csv.xz"
SHA256 = "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8"  # of the text, before compression


def digits_text() -> str:
    """One line for each image: 64 pixels from 0 to 16 and the label; unpacked and checked against its sha256."""
    return read_embedded_text("digits", FILE, SHA256)


@lru_cache(maxsize=1)
def read_digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Pixels (1797, 64) from 0 to 1, and labels 0 to 9."""
    values = np.array([line.split(",") for line in digits_text().splitlines()], dtype=np.int64)  # (1797, 65)
    return (values[:, :-1] / 16).astype(np.float32), values[:, -1].copy()
