"""Thresholds at values that equal them exactly."""

import pytest
import torch

from thinwire import TensorSpec
from thinwire.catalog import parse_compressor
from thinwire.core import derive_key
from thinwire.kernels import dispatch, native

KEY = derive_key("threshold")
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def kept(text, numbers):
    compressor = parse_compressor(text)
    sent = compressor.decode(compressor.encode(numbers, KEY), TensorSpec.of("layer", numbers), KEY)
    return [at for at, number in enumerate(sent.tolist()) if number]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_c", (False, True))
def test_what_is_sent_exceeds_tau(dtype, with_c, monkeypatch):
    """Tolstobrov (2022), Algorithm 3: components that exceed the threshold, in absolute value."""
    if not with_c:
        monkeypatch.setattr(dispatch, "library", lambda: None)
    elif not native.runnable_builds():
        pytest.skip("C kernels are not built")
    for tau in (0.5, 0.1):  # 0.1 is rounded to the tensor's type
        level = torch.tensor(tau, dtype=dtype)
        above = torch.nextafter(level, torch.ones_like(level))
        numbers = torch.stack([level, -level, above, -above, level / 2, -2 * level] * 10)
        assert kept(f"threshold(tau={tau})", numbers) == [at for at in range(60) if at % 6 in (2, 3, 5)]


def test_a_tau_of_zero_sends_what_is_not_zero():
    numbers = torch.tensor([0.0, -0.0, 1e-40, -1.0])
    compressor = parse_compressor("threshold(tau=0.0)")
    assert compressor.select(numbers, KEY).tolist() == [2, 3]


def test_a_threshold_by_count_keeps_values_at_its_level():
    """Rethink-GS keeps |x| >= 1/(2 sqrt(count)); 0.25 here."""
    assert kept("threshold(count=4)", torch.tensor([0.25, -0.25, 0.2, 0.3])) == [0, 1, 3]


def test_a_quantile_threshold_is_the_smallest_magnitude_that_is_sent():
    """Its contract, delta = k/d, counts on at least k: of equal numbers none exceeds the others."""
    assert kept("quantile_threshold(density=0.5)", torch.ones(8)) == list(range(8))
    assert kept("quantile_threshold(density=0.5)", torch.tensor([3.0, -1.0, 2.0, 0.5])) == [0, 2]
