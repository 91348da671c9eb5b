"""Laws that every compressor of the catalog keeps, over drawn tensors."""

import math

import pytest
import torch

from drawn import COMPRESSOR_TEXTS, DTYPES, KINDS, SHAPES, compressors, draw
from thinwire.catalog import parse_compressor
from thinwire.compressors import RandomK, RandomProjection
from thinwire.core import Capability, Key, Payload, TensorSpec, adds_up, derive_key, has

EVERY = pytest.mark.parametrize("compressor", compressors(), ids=COMPRESSOR_TEXTS)
KEY = derive_key(1, "law")


def through(compressor, x, key=KEY):
    spec = TensorSpec.of("x", x)
    return compressor.decode(compressor.encode(x, key), spec, key)


def relative_error(x, y):
    """|x - y|^2 / |x|^2, in float64 and without overflow."""
    scale = float(x.abs().max()) or 1.0
    x, y = x.double() / scale, y.double() / scale
    return float((x - y).square().sum() / x.square().sum().clamp(min=1e-300))


@EVERY
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_finite_in_gives_finite_out_of_the_same_form(compressor, dtype):
    for shape in SHAPES:
        for kind in KINDS:
            x = draw(kind, shape, dtype)
            y = through(compressor, x)
            assert (y.shape, y.dtype) == (x.shape, x.dtype)
            assert bool(y.isfinite().all()), (kind, shape)


@EVERY
def test_zero_in_gives_zero_out(compressor):
    for shape in SHAPES:
        assert not through(compressor, torch.zeros(shape)).any()


@EVERY
def test_encoding_depends_on_values_and_key_alone_and_changes_nothing(compressor):
    x = draw("gaussian", (24, 10))
    kept = x.clone()
    once = compressor.encode(x, KEY)
    strided = draw("gaussian", (24, 10)).T.contiguous().T  # the same values, columns first in memory
    again = compressor.encode(strided, KEY)
    assert torch.equal(x, kept)
    assert len(once.parts) == len(again.parts)
    assert all(torch.equal(a, b) for a, b in zip(once.parts, again.parts, strict=True))
    assert all(part.is_contiguous() for part in once.parts)


@EVERY
def test_expected_size_is_the_size_sent(compressor):
    if has(compressor, Capability.VARIES_IN_SIZE):
        return  # how many these send depends on the numbers
    for shape in ((1,), (7,), (33, 5), (40, 50)):
        x = draw("gaussian", shape)
        sent, expected = compressor.encode(x, KEY).nbytes, compressor.nbytes(TensorSpec.of("x", x))
        assert abs(sent - expected) <= 0.1 * expected + 3, (shape, sent, expected)


@EVERY
def test_model_bits_never_exceed_the_bytes_sent_by_more_than_the_coding_gains(compressor):
    payload = compressor.encode(draw("gaussian", (40, 50)), KEY)
    model = sum(payload.model_bits)
    assert len(payload.kinds) == len(payload.model_bits) == len(payload.parts)
    assert 0.9 * model - 64 <= 8 * payload.nbytes <= 1.1 * model + 64


@EVERY
def test_contraction_holds(compressor):
    for shape in ((1,), (7,), (33, 5), (600,)):
        spec = TensorSpec("x", shape)
        delta = compressor.contract(spec).delta
        if delta is None:
            return
        for kind in KINDS:
            if kind == "one huge" and ("PowerOfTwo" in repr(compressor) or "Natural" in repr(compressor)):
                continue  # beyond 2^127 there is no further power of two to go to
            x = draw(kind, shape)
            draws = _draws(compressor, kind)
            errors = [relative_error(x, through(compressor, x, derive_key(i))) for i in range(draws)]
            mean, spread = _mean_and_spread(errors)
            assert mean <= 1 - delta + 1e-6 + 4 * spread, (kind, shape)


def _draws(compressor, kind):
    """Enough for a mean: the share that a random direction keeps of one coordinate has a long tail."""
    if isinstance(compressor, RandomProjection):
        return 120
    return 60 if kind == "gaussian" or isinstance(compressor, RandomK) else 4


@EVERY
@pytest.mark.parametrize("kind", ("gaussian", "heavy tails", "sparse"))
def test_unbiased_operators_have_mean_x_and_bounded_variance(compressor, kind):
    x = draw(kind, (40,))
    omega = compressor.contract(TensorSpec.of("x", x)).omega
    if omega is None:
        return
    draws = 2000
    ys = torch.stack([through(compressor, x, derive_key("unbiased", i)) for i in range(draws)]).double()
    mean, spread = ys.mean(0), ys.std(0) / math.sqrt(draws)
    rare = (ys != ys.mode(0).values).sum(0) < 20  # too few events for their spread to be estimated from them
    spread = torch.where(rare, (x.abs() * x.abs().max() / draws).sqrt(), spread)
    assert bool(((mean - x.double()).abs() <= 5 * spread + 1e-4 * x.abs().max()).all())
    errors = [relative_error(x, y) for y in ys]
    error, error_spread = _mean_and_spread(errors)
    assert error <= omega + 4 * error_spread + 1e-9


def _mean_and_spread(values):
    values = torch.tensor(values, dtype=torch.float64)
    return float(values.mean()), float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else 0.0


@EVERY
def test_payloads_of_additive_operators_add_up(compressor):
    x, y = draw("gaussian", (33, 5), torch.float64, 1), draw("gaussian", (33, 5), torch.float64, 2)
    spec = TensorSpec.of("x", x)
    if not adds_up(compressor):
        return
    one, two = compressor.encode(x, KEY), compressor.encode(y, KEY)
    total = Payload(tuple(a + b for a, b in zip(one.parts, two.parts, strict=True)))
    separate = compressor.decode(one, spec, KEY) + compressor.decode(two, spec, KEY)
    torch.testing.assert_close(compressor.decode(total, spec, KEY), separate)


def test_topk_is_tight_for_equal_magnitudes_and_exact_for_one_hot():
    topk = parse_compressor("topk(density=0.1)")
    assert relative_error(draw("ties", (600,)), through(topk, draw("ties", (600,)))) == pytest.approx(0.9)
    assert torch.equal(through(topk, draw("one-hot", (600,))), draw("one-hot", (600,)))


def test_topk_breaks_ties_by_position_and_keeps_exactly_k():
    y = through(parse_compressor("topk(k=3)"), torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0]))
    assert y.tolist() == [1.0, -1.0, 1.0, 0.0, 0.0]


def test_randomk_is_tight_in_both_forms():
    x = draw("gaussian", (40,))
    for text, expected in (("randomk(k=10)", 3.0), ("randomk(k=10, scaled=false)", 0.75)):
        errors = [relative_error(x, through(parse_compressor(text), x, derive_key(i))) for i in range(4000)]
        assert _mean_and_spread(errors)[0] == pytest.approx(expected, rel=0.05)


def test_qsgd_is_tight_for_one_large_and_many_small_numbers():
    """omega = (sqrt(1 + a) - 1) / 2 with a = (d-1)/s^2 is reached at p = (sqrt(1 + a) - 1) / a of a level."""
    qsgd = parse_compressor("qsgd(bits=4, block=512)")
    a = 511 / qsgd.levels**2
    x = torch.full((512,), (math.sqrt(1 + a) - 1) / a / qsgd.levels)
    x[0] = 1.0
    errors = [relative_error(x, through(qsgd, x, derive_key(i))) for i in range(400)]
    omega = qsgd.contract(TensorSpec.of("x", x)).omega
    assert _mean_and_spread(errors)[0] == pytest.approx(omega, rel=0.02)


def test_natural_is_tight_between_powers_of_two():
    x = torch.full((4000,), 4 / 3)  # where the variance p(1-p)/(1+p)^2 is largest
    errors = relative_error(x, through(parse_compressor("natural()"), x))
    assert errors == pytest.approx(1 / 8, rel=0.05)


def test_nearest_powers_of_two_follow_their_rules():
    x = torch.tensor([1.49, 1.51, 1.41, 1.42, -3.1, 0.0, 5.0])
    assert through(parse_compressor("power2()"), x).tolist() == [1.0, 2.0, 1.0, 1.0, -4.0, 0.0, 4.0]
    assert through(parse_compressor('power2(rule="log")'), x).tolist() == [2.0, 2.0, 1.0, 2.0, -4.0, 0.0, 4.0]
    assert through(parse_compressor('power2(rule="log", ceiling=0)'), x).abs().max() == 1.0


def test_sign_is_tight_for_one_hot():
    x = draw("one-hot", (64,))
    assert relative_error(x, through(parse_compressor("sign()"), x)) == pytest.approx(1 - 1 / 64)


def test_random_positions_are_never_sent():
    payload = parse_compressor("randomk(k=10)").encode(torch.randn(1000), Key(5))
    assert payload.nbytes == 40
