"""Constraint sets of the importance: every step stays inside, whatever the slope."""

import pytest
import torch

from helpers.cases import draw
from thinwire.importance import Box, ScaledSimplex, Simplex

SETS = [
    Simplex(1.0, 0.1), Simplex(1e8, 0.0), ScaledSimplex(1.0, 0.0), ScaledSimplex(1e8, 1e-3), ScaledSimplex(1e-3, 1.0),
    Box(1.0, 0.0, 2.0), Box(1e8, 1.0, 2.0),
]  # fmt: skip
KINDS = ("gaussian", "heavy tails", "sparse", "zeros", "one-hot", "one huge", "tiny")


def assert_inside(constraint, w):
    assert bool(w.isfinite().all())
    if isinstance(constraint, Box):
        assert bool(((w >= constraint.low) & (w <= constraint.high)).all())
    else:
        assert bool((w >= 0).all())
        total = 1.0 if isinstance(constraint, Simplex) else w.numel()
        assert float(w.sum()) == pytest.approx(total, rel=2e-5)


@pytest.mark.parametrize("constraint", SETS, ids=str)
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64), ids=str)
def test_w_stays_in_its_set_at_every_step_of_any_length(constraint, dtype):
    for shape in ((1,), (7,), (40, 25)):
        iterate = constraint.project(constraint.initial_weights("ones", torch.zeros(shape, dtype=dtype)))
        assert_inside(constraint, constraint.weights(iterate))
        for step, kind in enumerate(KINDS * 3):
            iterate = constraint.step(iterate, draw(kind, shape, dtype, step))
            assert bool(iterate.isfinite().all())
            assert_inside(constraint, constraint.weights(iterate))
            assert bool(constraint.trial_weights(iterate).isfinite().all())


@pytest.mark.parametrize("constraint", SETS, ids=str)
@pytest.mark.parametrize("start", ("ones", "center", "gradient", "gradient_squared"))
@pytest.mark.parametrize("kind", (*KINDS, "constant"))
def test_every_start_is_in_the_set(constraint, start, kind):
    w = constraint.weights(constraint.project(constraint.initial_weights(start, draw(kind, (6, 5)))))
    assert w.shape == (6, 5)
    assert_inside(constraint, w)


def test_empty_layers_have_empty_w():
    for constraint in SETS:
        iterate = constraint.project(constraint.initial_weights("gradient_squared", torch.zeros(0)))
        assert constraint.trial_weights(constraint.step(iterate, torch.zeros(0))).numel() == 0


def test_initial_weights_match_their_names():
    g = torch.tensor([-1.0, 2.0, 0.0, 1.0])
    half, whole, box = Simplex(1.0, 0.0), ScaledSimplex(1.0, 0.0), Box(1.0, 1.0, 3.0)

    def begin(constraint, kind):
        return constraint.weights(constraint.project(constraint.initial_weights(kind, g)))

    torch.testing.assert_close(begin(half, "ones"), torch.full((4,), 0.25))
    torch.testing.assert_close(begin(half, "gradient"), torch.tensor([0.25, 0.5, 0, 0.25]))
    torch.testing.assert_close(begin(whole, "gradient_squared"), torch.tensor([4 / 6, 16 / 6, 0, 4 / 6]))
    assert begin(box, "ones").tolist() == [1, 1, 1, 1]
    assert begin(box, "center").tolist() == [2, 2, 2, 2]
    assert begin(box, "gradient").tolist() == [2, 3, 1, 2]


def test_the_simplex_step_is_the_published_one():
    w = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    slope = torch.tensor([1.0, -2.0, 0.5, 0.0], dtype=torch.float64)
    constraint = Simplex(eta=0.7, lam=0.1)
    u = slope + 0.1 * w.log()
    expected = w * (-0.7 * u).exp()
    iterate = constraint.step(constraint.project(w), slope)
    torch.testing.assert_close(constraint.weights(iterate), expected / expected.sum())
    torch.testing.assert_close(constraint.trial_weights(iterate), expected / expected.max())


def test_the_scaled_simplex_step_is_proximal_and_a_softmax_in_the_limit():
    w = torch.tensor([0.5, 1.0, 1.5, 1.0], dtype=torch.float64)
    slope = torch.tensor([1.0, -2.0, 0.5, 0.0], dtype=torch.float64)
    damped = 1 / (1 + 0.3 * 2.0)
    expected = w**damped * (-0.3 * damped * slope).exp()
    constraint = ScaledSimplex(eta=0.3, lam=2.0)
    torch.testing.assert_close(
        constraint.weights(constraint.step(constraint.project(w), slope)), 4 * expected / expected.sum()
    )
    limit = ScaledSimplex(eta=1e12, lam=0.5)
    torch.testing.assert_close(limit.weights(limit.step(limit.project(w), slope)), 4 * torch.softmax(-slope / 0.5, 0))
