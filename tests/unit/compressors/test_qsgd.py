"""QSGD with blocks of very small numbers."""

from __future__ import annotations

import pytest
import torch

from thinwire.compressors import QSGD
from thinwire.core import TensorSpec, derive_key

SMALLEST_NORM = 2.0**-112


@pytest.mark.parametrize("bits", range(2, 17))
@pytest.mark.parametrize("value", [1e-30, 1e-33, 1e-35, 1e-37])
def test_small_numbers_are_off_by_at_most_one_level(bits, value):
    """Ten bits and more lost them: levels / norm was infinite."""
    qsgd, key = QSGD(bits=bits, block=8), derive_key("small", bits)
    tensor = torch.tensor([value, -value] * 12)
    decoded = qsgd.decode(qsgd.encode(tensor, key), TensorSpec.of("x", tensor), key)
    level = max(value, SMALLEST_NORM) / qsgd.levels
    assert float((decoded.double() - tensor.double()).abs().max()) <= 1.001 * level
