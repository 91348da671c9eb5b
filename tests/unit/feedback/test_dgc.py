"""What is special to DGC: momentum before compression, masking, clipping by worker."""

import math

import pytest
import torch

from helpers.cases import draw
from thinwire import CompositionError, TensorSpec, World, lockstep, loopback, parse
from thinwire.core import Context, derive_key
from thinwire.feedback import DGC
from thinwire.feedback.dgc import clip_norm


def steps(text, count, dtype=torch.float32, shape=(50,)):
    """Yields (tensor, state before, what came out) for random tensors."""
    aggregator, spec = parse(text), TensorSpec("layer", shape, dtype)
    state = aggregator.init(spec, derive_key("init"))
    for step in range(count):
        tensor = draw("gaussian", shape, dtype, step)
        out = loopback(aggregator.reduce(tensor, spec, state, Context(step, World(0, 1), seed=1)))
        yield tensor, state, out
        state = out.state


def test_masking_zeroes_both_buffers_where_something_was_sent():
    for _, _, out in steps("dgc(topk(k=5))", 30):
        there = out.sent != 0
        assert int(there.sum()) == 5
        assert bool((out.state.velocity[there] == 0).all()) and bool((out.state.residual[there] == 0).all())
        assert bool((out.state.velocity[~there] != 0).all())


def test_buffers_follow_the_published_recurrence():
    for tensor, before, out in steps("dgc(topk(k=5), momentum=0.5)", 30, torch.float64):
        u = 0.5 * before.velocity + tensor
        v = before.residual + u
        there = v.abs() >= v.abs().topk(5).values[-1]
        torch.testing.assert_close(out.sent, v * there)
        torch.testing.assert_close(out.state.velocity, u * ~there)
        torch.testing.assert_close(out.state.residual, v * ~there)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("inner", ["topk(k=5)", "qsgd(bits=3, block=16)", "sign()"])
def test_without_momentum_and_mask_it_is_error_feedback_to_the_bit(inner, dtype):
    pairs = zip(
        steps(f"dgc({inner}, momentum=0, masking=false)", 50, dtype), steps(f"ef({inner})", 50, dtype), strict=True
    )
    for (_, _, mine), (_, _, theirs) in pairs:
        assert torch.equal(mine.value, theirs.value) and torch.equal(mine.sent, theirs.sent)
        assert torch.equal(mine.state.residual, theirs.state.residual)


def test_without_mask_all_velocity_is_sent_in_the_end():
    """sum of sent + residual = sum of velocities, which is what an uncompressed momentum optimizer would apply."""
    velocity = applied = torch.zeros(50, dtype=torch.float64)
    sent = torch.zeros(50, dtype=torch.float64)
    for tensor, _, out in steps("dgc(topk(k=5), masking=false)", 300, torch.float64):
        velocity = 0.9 * velocity + tensor
        applied, sent = applied + velocity, sent + out.sent
    torch.testing.assert_close(sent + out.state.residual, applied, rtol=1e-9, atol=1e-9)


def test_clip_bounds_each_workers_norm_by_the_root_of_the_ranks():
    aggregator, spec, size = parse("dgc(dense(), momentum=0, clip=2.0)"), TensorSpec("layer", (40,)), 4
    tensors = [draw("gaussian", (40,), seed=r) * scale for r, scale in enumerate((1.0, 10.0, 1e30, 1e-3))]
    state = aggregator.init(spec, derive_key(0))
    outs = lockstep([aggregator.reduce(t, spec, state, Context(0, World(r, size))) for r, t in enumerate(tensors)])
    for tensor, out in zip(tensors, outs, strict=True):
        norm = float(tensor.double().norm())
        assert float(out.sent.double().norm()) == pytest.approx(min(norm, 2.0 / math.sqrt(size)), rel=1e-5)
    assert torch.equal(outs[3].sent, tensors[3])  # a short one is not touched


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_clipping_stands_the_largest_and_the_smallest_numbers(dtype):
    limits = torch.finfo(dtype)
    for value in (limits.max, -limits.max, limits.tiny, 0.0):
        for norm in (1e-3, 1.0):
            got = clip_norm(torch.full((9,), value, dtype=dtype), norm)
            expected = math.copysign(min(abs(value), norm / 3), value)
            assert got.dtype == dtype and got.tolist() == pytest.approx([expected] * 9, rel=1e-6, abs=0)
    assert clip_norm(torch.zeros(0, dtype=dtype), 1.0).numel() == 0
    assert clip_norm(torch.tensor(5.0, dtype=dtype), 1.0).tolist() == 1.0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"momentum": 1.0}, r"DGC: momentum must be in \[0, 1\), got 1.0"),
        ({"momentum": -0.1}, "momentum must be in"),
        ({"momentum": float("nan")}, "momentum must be in"),
        ({"clip": 0.0}, "DGC: clip must be positive and finite, got 0.0"),
        ({"clip": float("inf")}, "clip must be positive"),
    ],
)
def test_settings_out_of_range_are_refused(settings, words):
    with pytest.raises(CompositionError, match=words):
        DGC(parse("topk(k=1)"), **settings)
