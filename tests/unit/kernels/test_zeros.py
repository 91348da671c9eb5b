"""Initial states are zeros that take no memory until they are written to."""

import copy
from pathlib import Path

import pytest
import torch

from thinwire.kernels.memory import zeros


@pytest.mark.parametrize("shape", ((), (0,), (3,), (300, 400), (5, 0, 2)))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_zeros_are_a_tensor_like_any_other(shape, dtype):
    made = zeros(shape, dtype)
    assert torch.equal(made, torch.zeros(shape, dtype=dtype)) and made.is_contiguous()
    copied = copy.deepcopy(made)
    made += 1
    assert torch.equal(made, torch.ones(shape, dtype=dtype)) and not copied.any()


def read_memory():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def test_zeros_that_are_only_read_take_no_memory():
    before = read_memory()
    made = zeros((64_000_000,))
    assert float(made.sum()) == 0
    assert read_memory() - before < 64_000_000  # of 256 MB
    del made
