"""The mushrooms data set: 8,124 rows, 112 binary columns, poisonous or edible. Embedded; see ATTRIBUTION.md."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .embedded import read_embedded_text
from .libsvm import parse_libsvm

FEATURES = 112
SHA256 = "f39a4eb628dc61a7d43760815b061c9e497aa728ce1ad8bde57a09ef6043b538"  # of the text, before compression


def mushrooms_text() -> str:
    """The LIBSVM text, unpacked and checked against its sha256."""
    return read_embedded_text("mushrooms", "mushrooms.libsvm.xz", SHA256)


def load_mushrooms() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Features (8124, 112) of 0 and 1, and labels (8124,): 1 is poisonous, 2 is edible. New arrays at every call."""
    features, labels = parse_libsvm(mushrooms_text(), FEATURES)
    return features, labels.astype(np.int64)
