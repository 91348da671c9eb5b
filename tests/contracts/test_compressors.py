"""Every registered compressor keeps the laws of `thinwire.testing`; and tensors for which contracts are tight."""

import math

import pytest
import torch

from helpers.cases import COMPRESSOR_TEXTS, compressors, draw
from thinwire.catalog import parse_compressor
from thinwire.core import Key, TensorSpec, derive_key
from thinwire.testing import COMPRESSOR_LAWS, relative_error, roundtrip
from thinwire.testing.compressors import mean_and_spread


@pytest.mark.parametrize("compressor", compressors(), ids=COMPRESSOR_TEXTS)
@pytest.mark.parametrize("law", COMPRESSOR_LAWS, ids=str)
def test_every_compressor_keeps(law, compressor):
    law(compressor)


def test_topk_is_tight_for_equal_magnitudes_and_exact_for_one_hot():
    topk = parse_compressor("topk(density=0.1)")
    assert relative_error(draw("ties", (600,)), roundtrip(topk, draw("ties", (600,)))) == pytest.approx(0.9)
    assert torch.equal(roundtrip(topk, draw("one-hot", (600,))), draw("one-hot", (600,)))


def test_topk_breaks_ties_by_position_and_keeps_exactly_k():
    y = roundtrip(parse_compressor("topk(k=3)"), torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0]))
    assert y.tolist() == [1.0, -1.0, 1.0, 0.0, 0.0]


def test_randomk_is_tight_in_both_forms():
    x = draw("gaussian", (40,))
    for text, expected in (("randomk(k=10)", 3.0), ("randomk(k=10, scaled=false)", 0.75)):
        errors = [relative_error(x, roundtrip(parse_compressor(text), x, derive_key(i))) for i in range(4000)]
        assert mean_and_spread(errors)[0] == pytest.approx(expected, rel=0.05)


def test_qsgd_is_tight_for_one_large_and_many_small_numbers():
    """omega = (sqrt(1 + a) - 1) / 2 with a = (d-1)/s^2 is reached at p = (sqrt(1 + a) - 1) / a of a level."""
    qsgd = parse_compressor("qsgd(bits=4, block=512)")
    a = 511 / qsgd.levels**2
    x = torch.full((512,), (math.sqrt(1 + a) - 1) / a / qsgd.levels)
    x[0] = 1.0
    errors = [relative_error(x, roundtrip(qsgd, x, derive_key(i))) for i in range(400)]
    omega = qsgd.contract(TensorSpec.of("x", x)).omega
    assert mean_and_spread(errors)[0] == pytest.approx(omega, rel=0.02)


def test_natural_is_tight_between_powers_of_two():
    x = torch.full((4000,), 4 / 3)  # where the variance p(1-p)/(1+p)^2 is largest
    errors = relative_error(x, roundtrip(parse_compressor("natural()"), x))
    assert errors == pytest.approx(1 / 8, rel=0.05)


def test_nearest_powers_of_two_follow_their_rules():
    x = torch.tensor([1.49, 1.51, 1.41, 1.42, -3.1, 0.0, 5.0])
    assert roundtrip(parse_compressor("nearest_power2()"), x).tolist() == [1.0, 2.0, 1.0, 1.0, -4.0, 0.0, 4.0]
    assert roundtrip(parse_compressor('nearest_power2(metric="log")'), x).tolist() == [
        2.0,
        2.0,
        1.0,
        2.0,
        -4.0,
        0.0,
        4.0,
    ]
    assert roundtrip(parse_compressor('nearest_power2(metric="log", max_exponent=0)'), x).abs().max() == 1.0


def test_sign_is_tight_for_one_hot():
    x = draw("one-hot", (64,))
    assert relative_error(x, roundtrip(parse_compressor("sign()"), x)) == pytest.approx(1 - 1 / 64)


def test_random_positions_are_never_sent():
    payload = parse_compressor("randomk(k=10)").encode(torch.randn(1000), Key(5))
    assert payload.num_bytes == 40
