"""Residuals stored as bfloat16 and int8: unbiased, close, finite."""

import math

import pytest
import torch

from helpers.cases import DTYPES, KINDS, SHAPES, draw
from thinwire import CompositionError, TensorSpec, World, loopback, parse
from thinwire.core import Context, derive_key
from thinwire.feedback.residuals import (
    BLOCK,
    RESIDUAL_DTYPES,
    Int8Residual,
    dequantize_residual,
    quantize_residual,
    zero_residual,
)

QUANTIZED = ("bf16", "int8")


def round_trip(tensor, stored_as, key=0):
    return dequantize_residual(quantize_residual(tensor, stored_as, derive_key(key)), TensorSpec.of("layer", tensor))


def step_sizes(tensor, stored_as):
    """The distance between neighboring levels at each element."""
    wide = tensor.double()
    if stored_as == "bf16":
        return torch.exp2(torch.frexp(wide).exponent - 8.0)  # eight bits of mantissa
    parts = wide.flatten().split(BLOCK)
    return torch.cat([(part.abs().amax() / 127).expand_as(part) for part in parts if part.numel()]).view_as(wide)


@pytest.mark.parametrize("stored_as", RESIDUAL_DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64), ids=str)
def test_the_error_is_less_than_a_step_and_zeros_are_exact(stored_as, kind, dtype):
    for shape in (*SHAPES, (3, 100), (517,)):
        tensor = draw(kind, shape, dtype)
        got = round_trip(tensor, stored_as)
        assert got.shape == tensor.shape and got.dtype == dtype and bool(got.isfinite().all())
        assert bool((got[tensor == 0] == 0).all())
        if stored_as == "fp32":
            assert torch.equal(got, tensor)
        elif tensor.numel():
            assert bool(
                ((got.double() - tensor.double()).abs() <= 1.0001 * step_sizes(tensor, stored_as) + 2.0**-126).all()
            )


@pytest.mark.parametrize("stored_as", QUANTIZED)
def test_quantization_is_unbiased_over_keys(stored_as):
    draws, tensor = 2000, draw("gaussian", (300,), seed=5)
    got = torch.stack([round_trip(tensor, stored_as, key) for key in range(draws)]).double()
    error = got.mean(0) - tensor.double()
    step = step_sizes(tensor, stored_as)
    share = (tensor.double() / step).frac().abs()  # of the way to the next level: the chance to be rounded there
    deviation = step * (share * (1 - share) / draws).sqrt()
    assert bool((error.abs() <= 5 * deviation + 2.0**-16 * step).all())
    assert abs(float(error.sum())) <= 5 * float(deviation.square().sum().sqrt()) + 2.0**-16 * float(step.sum())


@pytest.mark.parametrize("stored_as", QUANTIZED)
def test_increments_below_half_a_step_are_not_lost(stored_as):
    """1e-4 added 2000 times beside 1.0: each time far less than half a step. Rounding to the nearest would keep none."""
    count, steps, rate = 255, 2000, 1e-4
    spec = TensorSpec("layer", (count + 1,))
    increments = torch.full((count + 1,), rate)
    start = torch.full((count + 1,), 0.5)  # half way up, so that a bfloat16's steps are large here, too
    start[0], increments[0] = 1.0, 0.0
    stored = quantize_residual(start, stored_as, derive_key("start"))
    first = dequantize_residual(stored, spec)
    for step in range(steps):
        stored = quantize_residual(dequantize_residual(stored, spec) + increments, stored_as, derive_key(step))
    grown = (dequantize_residual(stored, spec) - first)[1:].double()
    gap = (
        1 / 127 if stored_as == "int8" else 2.0**-8
    )  # a grid's step is crossed with chance rate/gap: a binomial's variance
    deviation = math.sqrt(steps * rate * gap / count)
    assert float(dequantize_residual(stored, spec)[0]) == pytest.approx(1.0, abs=1e-3)
    assert abs(float(grown.mean()) - steps * rate) <= 5 * deviation


@pytest.mark.parametrize("stored_as", QUANTIZED)
def test_the_largest_numbers_stay_finite(stored_as):
    limit = torch.finfo(torch.float32).max
    for key in range(20):
        got = round_trip(torch.tensor([limit, -limit, 1.0, 0.0] * 100), stored_as, key)
        assert bool(got.isfinite().all()) and bool((got.abs() <= limit).all())
        assert float(got[0]) > 0.99 * limit and float(got[1]) < -0.99 * limit
    wide = torch.tensor([1e300, -1e300], dtype=torch.float64)
    assert bool(round_trip(wide, stored_as).isfinite().all())


@pytest.mark.parametrize("stored_as", QUANTIZED)
def test_views_are_quantized_as_their_copies_are(stored_as):
    tensor = draw("gaussian", (40, 30)).T
    assert torch.equal(round_trip(tensor, stored_as), round_trip(tensor.contiguous(), stored_as))


@pytest.mark.parametrize("stored_as", RESIDUAL_DTYPES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_zero_residual_has_the_layout_of_any_other(stored_as, dtype):
    for shape in SHAPES:
        spec = TensorSpec("layer", shape, dtype)
        empty = zero_residual(spec, stored_as)
        full = quantize_residual(draw("gaussian", shape, spec.work_dtype), stored_as, derive_key(1))
        pairs = zip(empty, full, strict=True) if isinstance(empty, Int8Residual) else [(empty, full)]
        assert all((a.shape, a.dtype) == (b.shape, b.dtype) for a, b in pairs)
        assert (
            bool((dequantize_residual(empty, spec) == 0).all())
            and dequantize_residual(empty, spec).dtype == spec.work_dtype
        )


def test_bf16_and_int8_take_a_half_and_a_quarter_of_the_memory():
    tensor = draw("gaussian", (BLOCK * 40,))
    assert quantize_residual(tensor, "bf16", derive_key(0)).element_size() == 2
    codes, scales = quantize_residual(tensor, "int8", derive_key(0))
    assert (codes.dtype, scales.dtype, scales.numel()) == (torch.int8, torch.float32, 40)
    assert codes.untyped_storage().nbytes() == tensor.numel()  # no larger buffer is held behind it


@pytest.mark.parametrize("stored_as", QUANTIZED)
@pytest.mark.parametrize("inner", ["topk(density=0.1)", "qsgd()"])
def test_error_feedback_with_a_quantized_residual_has_no_bias(inner, stored_as):
    """sum of sent + residual - sum of tensors is a sum of unbiased rounding errors: it grows as the root of the steps."""
    aggregator, spec, steps = parse(f'ef({inner}, residual_dtype="{stored_as}")'), TensorSpec("layer", (200,)), 500
    state = aggregator.init(spec, derive_key(0))
    given = sent = torch.zeros(200, dtype=torch.float64)
    variance = torch.zeros(200, dtype=torch.float64)
    for step in range(steps):
        tensor = draw("gaussian", (200,), seed=step)
        before = dequantize_residual(state.residual, spec)
        out = loopback(aggregator.reduce(tensor, spec, state, Context(step, World(0, 1), seed=2)))
        exact = tensor.double() + before.double() - out.sent.double()
        variance += (dequantize_residual(out.state.residual, spec).double() - exact).square()
        state, given, sent = out.state, given + tensor, sent + out.sent
    drift = sent + dequantize_residual(state.residual, spec) - given
    assert float((drift / variance.sqrt()).abs().max()) < 5
    assert abs(float(drift.sum())) < 5 * float(variance.sum().sqrt())


def test_each_rank_rounds_with_its_own_noise():
    aggregator, spec = parse('ef(topk(k=1), residual_dtype="int8")'), TensorSpec("layer", (500,))
    state, tensor = aggregator.init(spec, derive_key(0)), draw("gaussian", (500,))
    one, same, other = (
        loopback(aggregator.reduce(tensor, spec, state, Context(0, World(rank, 1)))).state.residual
        for rank in (0, 0, 1)
    )
    assert torch.equal(one.codes, same.codes) and not torch.equal(one.codes, other.codes)


def test_an_unknown_residual_dtype_is_refused():
    with pytest.raises(
        CompositionError, match="ErrorFeedback: residual_dtype must be one of fp32, bf16, int8, got 'fp8'"
    ):
        parse('ef(topk(k=1), residual_dtype="fp8")')
    with pytest.raises(CompositionError, match="SCAM: residual_dtype must be one of"):
        parse('scam(topk(k=1), residual_dtype="int4")')
