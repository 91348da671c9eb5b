"""Residuals in fewer bytes: right in the mean, close, finite."""

import math

import pytest
import torch

from helpers.cases import DTYPES, KINDS, SHAPES, draw
from thinwire import CompositionError, TensorSpec, World, loopback, parse
from thinwire.core import Context, derive_key
from thinwire.feedback.residuals import BLOCK, FORMS, Kept, keep, no_residual, recall

SHORT = ("bf16", "int8")


def there_and_back(tensor, form, key=0):
    return recall(keep(tensor, form, derive_key(key)), TensorSpec.of("layer", tensor))


def steps_of(tensor, form):
    """From one level to the next, beside each number."""
    wide = tensor.double()
    if form == "bf16":
        return torch.exp2(torch.frexp(wide).exponent - 8.0)  # eight bits of mantissa
    parts = wide.flatten().split(BLOCK)
    return torch.cat([(part.abs().amax() / 127).expand_as(part) for part in parts if part.numel()]).view_as(wide)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64), ids=str)
def test_the_error_is_less_than_a_step_and_zeros_are_exact(form, kind, dtype):
    for shape in (*SHAPES, (3, 100), (517,)):
        tensor = draw(kind, shape, dtype)
        got = there_and_back(tensor, form)
        assert got.shape == tensor.shape and got.dtype == dtype and bool(got.isfinite().all())
        assert bool((got[tensor == 0] == 0).all())
        if form == "fp32":
            assert torch.equal(got, tensor)
        elif tensor.numel():
            assert bool(((got.double() - tensor.double()).abs() <= 1.0001 * steps_of(tensor, form) + 2.0**-126).all())


@pytest.mark.parametrize("form", SHORT)
def test_kept_numbers_are_right_in_the_mean_over_keys(form):
    draws, tensor = 2000, draw("gaussian", (300,), seed=5)
    got = torch.stack([there_and_back(tensor, form, key) for key in range(draws)]).double()
    error = got.mean(0) - tensor.double()
    step = steps_of(tensor, form)
    share = (tensor.double() / step).frac().abs()  # of the way to the next level: the chance to be rounded there
    deviation = step * (share * (1 - share) / draws).sqrt()
    assert bool((error.abs() <= 5 * deviation + 2.0**-16 * step).all())
    assert abs(float(error.sum())) <= 5 * float(deviation.square().sum().sqrt()) + 2.0**-16 * float(step.sum())


@pytest.mark.parametrize("form", SHORT)
def test_what_is_smaller_than_a_step_is_not_forgotten(form):
    """1e-4 added 2000 times beside 1.0: each time far less than half a step. Rounding to the nearest would keep none."""
    count, steps, rate = 255, 2000, 1e-4
    spec = TensorSpec("layer", (count + 1,))
    increments = torch.full((count + 1,), rate)
    start = torch.full((count + 1,), 0.5)  # half way up, so that a bfloat16's steps are large here, too
    start[0], increments[0] = 1.0, 0.0
    kept = keep(start, form, derive_key("start"))
    first = recall(kept, spec)
    for step in range(steps):
        kept = keep(recall(kept, spec) + increments, form, derive_key(step))
    grown = (recall(kept, spec) - first)[1:].double()
    gap = 1 / 127 if form == "int8" else 2.0**-8  # a grid's step is crossed with chance rate/gap: a binomial's variance
    deviation = math.sqrt(steps * rate * gap / count)
    assert float(recall(kept, spec)[0]) == pytest.approx(1.0, abs=1e-3)
    assert abs(float(grown.mean()) - steps * rate) <= 5 * deviation


@pytest.mark.parametrize("form", SHORT)
def test_the_largest_numbers_stay_finite(form):
    limit = torch.finfo(torch.float32).max
    for key in range(20):
        got = there_and_back(torch.tensor([limit, -limit, 1.0, 0.0] * 100), form, key)
        assert bool(got.isfinite().all()) and bool((got.abs() <= limit).all())
        assert float(got[0]) > 0.99 * limit and float(got[1]) < -0.99 * limit
    wide = torch.tensor([1e300, -1e300], dtype=torch.float64)
    assert bool(there_and_back(wide, form).isfinite().all())


@pytest.mark.parametrize("form", SHORT)
def test_views_are_kept_as_their_copies_are(form):
    tensor = draw("gaussian", (40, 30)).T
    assert torch.equal(there_and_back(tensor, form), there_and_back(tensor.contiguous(), form))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_empty_memory_has_the_form_of_a_full_one(form, dtype):
    for shape in SHAPES:
        spec = TensorSpec("layer", shape, dtype)
        empty = no_residual(spec, form)
        full = keep(draw("gaussian", shape, spec.work_dtype), form, derive_key(1))
        pairs = zip(empty, full, strict=True) if isinstance(empty, Kept) else [(empty, full)]
        assert all((a.shape, a.dtype) == (b.shape, b.dtype) for a, b in pairs)
        assert bool((recall(empty, spec) == 0).all()) and recall(empty, spec).dtype == spec.work_dtype


def test_short_forms_take_a_half_and_a_quarter_of_the_memory():
    tensor = draw("gaussian", (BLOCK * 40,))
    assert keep(tensor, "bf16", derive_key(0)).element_size() == 2
    codes, scales = keep(tensor, "int8", derive_key(0))
    assert (codes.dtype, scales.dtype, scales.numel()) == (torch.int8, torch.float32, 40)
    assert codes.untyped_storage().nbytes() == tensor.numel()  # no larger buffer is held behind it


@pytest.mark.parametrize("form", SHORT)
@pytest.mark.parametrize("inner", ["topk(density=0.1)", "qsgd()"])
def test_error_feedback_with_a_short_residual_drifts_only_by_chance(inner, form):
    """sum of sent + residual - sum of tensors is a sum of roundings without bias: it grows as the root of the steps."""
    aggregator, spec, steps = parse(f'ef({inner}, residual="{form}")'), TensorSpec("layer", (200,)), 500
    state = aggregator.init(spec, derive_key(0))
    given = sent = torch.zeros(200, dtype=torch.float64)
    variance = torch.zeros(200, dtype=torch.float64)
    for step in range(steps):
        tensor = draw("gaussian", (200,), seed=step)
        before = recall(state.residual, spec)
        out = loopback(aggregator.reduce(tensor, spec, state, Context(step, World(0, 1), seed=2)))
        exact = tensor.double() + before.double() - out.sent.double()
        variance += (recall(out.state.residual, spec).double() - exact).square()
        state, given, sent = out.state, given + tensor, sent + out.sent
    drift = sent + recall(state.residual, spec) - given
    assert float((drift / variance.sqrt()).abs().max()) < 5
    assert abs(float(drift.sum())) < 5 * float(variance.sum().sqrt())


def test_ranks_round_by_noise_of_their_own():
    aggregator, spec = parse('ef(topk(k=1), residual="int8")'), TensorSpec("layer", (500,))
    state, tensor = aggregator.init(spec, derive_key(0)), draw("gaussian", (500,))
    one, same, other = (
        loopback(aggregator.reduce(tensor, spec, state, Context(0, World(rank, 1)))).state.residual
        for rank in (0, 0, 1)
    )
    assert torch.equal(one.codes, same.codes) and not torch.equal(one.codes, other.codes)


def test_an_unknown_form_is_refused_by_name():
    with pytest.raises(CompositionError, match="ErrorFeedback: residual must be one of fp32, bf16, int8, got 'fp8'"):
        parse('ef(topk(k=1), residual="fp8")')
    with pytest.raises(CompositionError, match="SCAM: residual must be one of"):
        parse('scam(topk(k=1), residual="int4")')
