"""PowerSGD: approximation, wire cost, and matrices of low rank or zeros."""

import pytest
import torch

from helpers.cases import KINDS, draw
from thinwire import Meter, TensorSpec, World, lockstep, parse
from thinwire.core import CompositionError, Context, derive_key
from thinwire.feedback import ErrorFeedback

SHAPE = (24, 40)


def run(text, tensors_by_step, meters=None, start=0):
    """What each rank got at each step."""
    aggregator = parse(text)
    size = len(tensors_by_step[0])
    spec = TensorSpec.of("layer", tensors_by_step[0][0])
    states = [aggregator.init(spec, derive_key("init")) for _ in range(size)]
    history = []
    for step, tensors in enumerate(tensors_by_step, start):
        contexts = [Context(step, World(rank, size)) for rank in range(size)]
        outs = lockstep(
            [aggregator.reduce(t, spec, s, c) for t, s, c in zip(tensors, states, contexts, strict=True)], meters
        )
        states = [out.state for out in outs]
        history.append(outs)
    return history


def low_rank(rank, seed=0, shape=SHAPE):
    return draw("gaussian", (shape[0], rank), seed=seed) @ draw("gaussian", (rank, shape[1]), seed=seed + 1)


def lost(x, y):
    return float((x - y).square().sum() / x.square().sum())


def best_possible(x, rank):
    sigma = torch.linalg.svdvals(x.double())
    return float(sigma[rank:].square().sum() / sigma.square().sum())


@pytest.mark.parametrize("rank", (1, 2, 4))
def test_the_first_step_finds_a_matrix_of_that_rank(rank):
    x = low_rank(rank)
    ((out,),) = run(f"powersgd(rank={rank})", [[x]])
    torch.testing.assert_close(out.value, x, rtol=1e-4, atol=1e-5)


def test_full_rank_reproduces_the_mean():
    tensors = [draw("gaussian", (12, 9), seed=rank) for rank in range(3)]
    (outs,) = run("powersgd(rank=9, min_saving=0.1)", [tensors])
    torch.testing.assert_close(outs[0].value, sum(tensors) / 3, rtol=1e-4, atol=1e-5)


def test_the_result_is_linear_in_the_ranks_tensors():
    """Four ranks with parts of a matrix get what one rank with their mean gets."""
    tensors = [draw("gaussian", SHAPE, torch.float64, seed) for seed in range(4)]
    apart = run("powersgd(rank=2)", [tensors] * 3)[-1]
    ((together,),) = run("powersgd(rank=2)", [[sum(tensors) / 4]] * 3)[-1:]
    torch.testing.assert_close(apart[0].value, together.value)


def test_warm_start_reaches_the_best_approximation():
    x = draw("gaussian", SHAPE) + 3 * low_rank(2)
    losses = [lost(x, out.value) for (out,) in run("powersgd(rank=2)", [[x]] * 12)]
    assert losses[-1] == pytest.approx(best_possible(x, 2), rel=1e-3)
    assert losses[0] >= losses[1] >= losses[-1]


def test_alternating_factors_converge_with_half_the_bytes_and_one_message_per_step():
    x = draw("gaussian", SHAPE) + 3 * low_rank(2)
    meters = {text: [Meter() for _ in range(2)] for text in ("powersgd(rank=2)", "powersgd(rank=2, alternate=true)")}
    for text, (meter, _) in meters.items():
        history = run(text, [[x, x]] * 24, meters[text])
        assert lost(x, history[-1][0].value) == pytest.approx(best_possible(x, 2), rel=1e-3)
        assert meter.total().requests == (24 if "alternate" in text else 48)
    whole, half = (m[0].total().payload_bytes for m in meters.values())
    assert whole == 2 * half == 24 * 2 * (24 + 40) * 4


@pytest.mark.parametrize("start", (0, 1))
def test_alternating_factors_may_start_at_any_step(start):
    history = run("powersgd(rank=1, alternate=true)", [[low_rank(1)]] * 4, start=start)
    torch.testing.assert_close(history[-1][0].value, low_rank(1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("setting", ("", ", alternate=true"))
def test_a_matrix_is_approximated_after_steps_of_zeros(setting):
    history = run(f"powersgd(rank=2{setting})", [[torch.zeros(SHAPE)]] * 3 + [[low_rank(2)]] * 3)
    assert all(not out.value.any() for (out,) in history[:3])
    torch.testing.assert_close(history[-1][0].value, low_rank(2), rtol=1e-4, atol=1e-5)


def test_directions_that_a_rank_deficient_matrix_leaves_free_are_used_later():
    history = run("powersgd(rank=3)", [[low_rank(1)]] * 3 + [[low_rank(3, seed=5)]] * 2)
    torch.testing.assert_close(history[2][0].value, low_rank(1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(history[-1][0].value, low_rank(3, seed=5), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.bfloat16), ids=str)
def test_the_projection_is_finite_and_no_longer_than_the_matrix(kind, dtype):
    x = draw(kind, SHAPE, dtype)
    for (out,) in run("powersgd(rank=2)", [[x]] * 2):
        assert bool(out.value.isfinite().all()) and bool(out.sent.isfinite().all())
        assert float(out.value.double().norm()) <= 1.01 * float(x.double().norm())


@pytest.mark.parametrize(
    ("shape", "dense"),
    [((), True), ((100,), True), ((3, 4), True), ((64, 3, 3, 3), False), ((1, 500), True), ((0, 4), True)],
)
def test_layers_that_would_not_shrink_are_sent_dense_and_labelled_dense(shape, dense):
    meters = [Meter(), Meter()]
    run("powersgd(rank=2)", [[draw("gaussian", shape, seed=r) for r in range(2)]], meters)
    assert set(meters[0].sum_by("kind")) == {"dense" if dense else "factors", "header"}


def test_given_dims_make_a_matrix_of_a_vector():
    x = low_rank(1, shape=(14, 8)).flatten()
    ((out,),) = run("powersgd(rank=1, dims=(14, 8))", [[x]])
    torch.testing.assert_close(out.value, x, rtol=1e-4, atol=1e-5)


def test_with_subtract_mean_every_rank_keeps_what_the_average_lacks():
    tensors = [draw("gaussian", SHAPE, seed=rank) for rank in range(3)]
    (outs,) = run('powersgd(rank=1, subtract="mean")', [tensors])
    assert all(torch.equal(out.sent, out.value) for out in outs)
    (outs,) = run("powersgd(rank=1)", [tensors])
    assert not torch.equal(outs[0].sent, outs[1].sent)


@pytest.mark.parametrize(
    "text", ("powersgd(rank=2)", 'powersgd(rank=2, subtract="mean")', "powersgd(rank=1, alternate=true)")
)
def test_the_fused_residual_is_the_plain_one_up_to_rounding(text):
    class Plain:
        """The same part without its fused form."""

        def __init__(self, inner):
            self.init, self.reduce = inner.init, inner.reduce

    spec = TensorSpec("layer", SHAPE)
    results = []
    for inner in (parse(text), Plain(parse(text))):
        rule = ErrorFeedback(inner)
        states = [rule.init(spec, derive_key("init"))] * 2
        for step in range(4):
            tensors = [draw("gaussian", SHAPE, seed=10 * step + rank) for rank in range(2)]
            contexts = [Context(step, World(rank, 2)) for rank in range(2)]
            outs = lockstep([rule.reduce(t, spec, s, c) for t, s, c in zip(tensors, states, contexts, strict=True)])
            states = [out.state for out in outs]
        results.append((outs[0].value, outs[0].sent, states[1].residual))
    for fused, plain in zip(*results, strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("powersgd(rank=0)", "rank must be at least 1"),
        ("powersgd(dims=(3, 4, 5))", "dims must be"),
        ("powersgd(min_saving=0)", "min_saving must be positive"),
        ('powersgd(subtract="all")', "subtract must be one of"),
    ],
)
def test_settings_that_make_no_sense_are_refused(text, words):
    with pytest.raises(CompositionError, match=words):
        parse(text)
