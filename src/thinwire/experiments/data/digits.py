"""The digits of scikit-learn: 1,797 images of 8 x 8, shipped with that library as text."""

from __future__ import annotations

import importlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...core import MissingExtra


@lru_cache(maxsize=1)
def read_digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Pixels (1797, 64) from 0 to 1, and labels 0 to 9."""
    try:
        source = importlib.import_module("sklearn.datasets")  # by name: it is an extra and has no types
    except ImportError as error:
        raise MissingExtra(
            f"digits: they come with scikit-learn, which cannot be imported ({error}); "
            "pip install 'thinwire[lab]' would do, or another task"
        ) from error
    pixels, labels = source.load_digits(return_X_y=True)
    return (pixels / 16).astype(np.float32), labels.astype(np.int64)
