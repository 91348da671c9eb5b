"""ImportanceSolver on functions with known solutions."""

import math

import pytest
import torch

from helpers.cases import draw
from thinwire import CompositionError, ImportanceSolver, Meter, World, lockstep, loopback
from thinwire.importance import FunctionObjective

CURVATURE = torch.tensor([0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 20.0], dtype=torch.float64)


def quadratic(curvature=CURVATURE):
    """sum of a x^2 / 2 over all layers."""

    def value(at):
        return sum((curvature * x.double().square()).sum() / 2 for x in at.values())

    return FunctionObjective(value, lambda at: {name: (curvature * x).to(x.dtype) for name, x in at.items()})


def problem(dtype=torch.float64, names=("x",), seed=0):
    points = {name: draw("gaussian", (8,), dtype, seed + i) for i, name in enumerate(names)}
    return points, {name: (CURVATURE * x).to(dtype) for name, x in points.items()}


def solve(solver, objective=None, gamma=0.25, names=("x",), previous=None, dtype=torch.float64):
    point, gradient = problem(dtype, names)
    return loopback(solver.solve(objective or quadratic(), point, gradient, gamma, previous))


def test_in_a_box_it_finds_the_closed_form_of_a_separable_quadratic():
    """w_i = clip(1 / (gamma a_i), low, high): each coordinate would step to its own minimum if it could."""
    x = CURVATURE.rsqrt().pow(3)  # so that the slope of every w falls equally fast: gamma^2 a^3 x^2 = gamma^2
    for gamma, (low, high) in ((0.25, (0.0, 2.0)), (0.1, (1.0, 2.0)), (0.5, (0.2, 1.5))):
        solver = ImportanceSolver("box", steps=200, eta=0.7 / gamma**2, low=low, high=high)
        found = loopback(solver.solve(quadratic(), {"x": x}, {"x": CURVATURE * x}, gamma))
        torch.testing.assert_close(found.importance["x"], (1 / (gamma * CURVATURE)).clamp(low, high))


@pytest.mark.parametrize("constraint", ("scaled_simplex", "box"))
def test_with_a_vanishing_step_w_stays_one(constraint):
    for gamma in (0.0, 1e-12):
        found = solve(ImportanceSolver(constraint, steps=20, keep="last"), gamma=gamma)
        torch.testing.assert_close(found.importance["x"], torch.ones(8, dtype=torch.float64))


def test_on_the_simplex_a_vanishing_step_leaves_equal_shares():
    found = solve(ImportanceSolver("simplex", steps=20, lam=0.1, keep="last"), gamma=1e-12)
    torch.testing.assert_close(found.importance["x"], torch.full((8,), 1 / 8, dtype=torch.float64))


SOLVERS = [
    ImportanceSolver("simplex", steps=30, eta=1.0, lam=0.1),
    ImportanceSolver("simplex", steps=30, eta=1e8),
    ImportanceSolver("scaled_simplex", steps=30, eta=0.3),
    ImportanceSolver("scaled_simplex", steps=30, eta=1e8, lam=1e-3),
    ImportanceSolver("box", steps=30, eta=0.1),
    ImportanceSolver("box", steps=30, eta=1e8, start="center"),
    ImportanceSolver("box", steps=30, eta=3.0, start="gradient_squared", scope="layerwise"),
]


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64), ids=str)
def test_the_best_w_is_kept_for_any_step_size(solver, dtype):
    names = ("a", "b") if solver.scope == "joint" else ("a",)
    found = solve(solver, names=names, dtype=dtype)
    point, gradient = problem(dtype, names)
    assert all(bool(w.isfinite().all()) for w in found.importance.values())
    assert len(found.losses) == solver.steps + 1
    best = {
        n: found.importance[n] / (found.importance[n].max() if solver.constraint == "simplex" else 1) for n in names
    }
    reached = float(quadratic().value({n: point[n] - 0.25 * best[n] * gradient[n] for n in names}))
    assert reached == pytest.approx(min(found.losses), rel=1e-5)
    assert reached <= found.losses[0] * (1 + 1e-6)


def test_keep_last_returns_the_last_iterate_and_evaluates_once_less():
    asked = []
    plain = quadratic()
    counting = FunctionObjective(lambda at: asked.append("value") or plain.function(at), plain.gradient)
    last = solve(ImportanceSolver("box", steps=4, eta=0.5, start="center", high=9.0, keep="last"), counting)
    assert len(asked) == len(last.losses) == 4
    best = solve(ImportanceSolver("box", steps=4, eta=0.5, start="center", high=9.0))
    assert last.losses == best.losses[:4] and not torch.equal(last.importance["x"], best.importance["x"])


def test_losses_that_are_not_finite_are_never_the_best():
    def spoiled(bad):
        losses = iter([5.0, bad, 4.0, bad, -math.inf])
        return FunctionObjective(lambda at: next(losses), quadratic().gradient)

    for bad in (math.nan, math.inf):
        found = solve(ImportanceSolver("box", steps=4, eta=0.01), spoiled(bad))
        best = solve(ImportanceSolver("box", steps=2, eta=0.01, keep="last"))
        assert torch.equal(found.importance["x"], best.importance["x"])


def test_a_slope_that_is_not_finite_ends_the_search():
    objective = FunctionObjective(lambda at: 1.0, lambda at: {"x": torch.full((8,), math.nan, dtype=torch.float64)})
    found = solve(ImportanceSolver("box", steps=9), objective)
    assert found.losses == (1.0,) and torch.equal(found.importance["x"], torch.ones(8, dtype=torch.float64))


def test_the_simplex_solver_is_the_published_loop():
    """w <- w exp(-gamma u), u = -gamma_0 grad f(x - gamma_0 (w / max w) g) g + alpha log w, then divided by its sum."""
    point, gradient = problem()
    x, g, w, gamma = point["x"], gradient["x"], torch.full((8,), 1 / 8, dtype=torch.float64), 0.01
    for _ in range(100):
        u = -(CURVATURE * (x - gamma * (w / w.max()) * g)) * gamma * g + 0.1 * w.log()
        w = w * (-1.0 * u).exp()
        w = w / w.sum()
    found = solve(ImportanceSolver("simplex", steps=100, eta=1.0, lam=0.1, keep="last"), gamma=gamma)
    torch.testing.assert_close(found.importance["x"], w, rtol=1e-9, atol=1e-12)


def test_a_warm_start_continues_from_the_last_solution():
    half = ImportanceSolver("simplex", steps=10, eta=0.5, lam=0.1, warm_start=True, keep="last")
    first = solve(half)
    twice = solve(half, previous=first.importance)
    whole = solve(ImportanceSolver("simplex", steps=20, eta=0.5, lam=0.1, keep="last"))
    torch.testing.assert_close(twice.importance["x"], whole.importance["x"])
    cold = ImportanceSolver("simplex", steps=10, eta=0.5, lam=0.1, keep="last")
    assert torch.equal(solve(cold, previous=first.importance).importance["x"], first.importance["x"])


def test_skipped_layers_get_no_w_but_take_part_in_the_trial():
    seen = []
    plain = quadratic()
    watching = FunctionObjective(lambda at: seen.append(dict(at)) or plain.function(at), plain.gradient)
    found = solve(ImportanceSolver("box", steps=2, eta=0.1, skip=("*bn*",)), watching, names=("conv", "bn1.weight"))
    assert found.importance.keys() == {"conv"}
    point, gradient = problem(names=("conv", "bn1.weight"))
    whole_step = point["bn1.weight"] - 0.25 * gradient["bn1.weight"]
    assert all(torch.equal(at["bn1.weight"], whole_step) for at in seen)


def test_layerwise_scope_moves_one_layer_at_a_time():
    seen = []
    plain = quadratic()
    watching = FunctionObjective(lambda at: seen.append(dict(at)) or plain.function(at), plain.gradient)
    solver = ImportanceSolver("box", steps=3, eta=0.01, scope="layerwise")
    found = solve(solver, watching, names=("a", "b"))
    point, _ = problem(names=("a", "b"))
    assert all(torch.equal(at["b"], point["b"]) for at in seen[:4])
    assert all(torch.equal(at["a"], point["a"]) for at in seen[4:])
    alone = solve(ImportanceSolver("box", steps=3, eta=0.01), names=("a",))
    torch.testing.assert_close(found.importance["a"], alone.importance["a"])  # a separable sum: the same slope


@pytest.mark.parametrize("constraint", ("simplex", "scaled_simplex", "box"))
def test_the_closed_form_is_one_step_from_ones(constraint):
    point, gradient = problem()
    solver = ImportanceSolver(constraint, steps=1, eta=0.5, keep="last", lam=0.0 if constraint == "box" else 0.1)
    after = {"x": CURVATURE * (point["x"] - 0.25 * gradient["x"])}
    torch.testing.assert_close(solver.solve_one_step(gradient, after, 0.25)["x"], solve(solver).importance["x"])


def test_half_precision_layers_are_solved_in_single():
    found = solve(ImportanceSolver("scaled_simplex", steps=3, eta=0.1), dtype=torch.bfloat16)
    assert found.importance["x"].dtype == torch.float32


def shared_programs(solver, size, names=("a", "b")):
    for rank in range(size):
        point, gradient = problem(names=names, seed=10 * rank)
        yield solver.solve(quadratic(CURVATURE * (rank + 1)), point, gradient, 0.05, None, World(rank, size))


def test_a_shared_w_is_the_same_on_all_ranks_and_of_the_average_slope():
    solver = ImportanceSolver("box", steps=4, eta=0.5, shared=True, keep="last")
    meters = [Meter() for _ in range(3)]
    found = lockstep(list(shared_programs(solver, 3)), meters)
    for other in found[1:]:
        assert all(torch.equal(other.importance[n], found[0].importance[n]) for n in ("a", "b"))
        assert other.losses == found[0].losses
    slopes = []
    for rank in range(3):
        point, gradient = problem(names=("a",), seed=10 * rank)
        after = CURVATURE * (rank + 1) * (point["a"] - 0.05 * gradient["a"])
        slopes.append(-0.05 * gradient["a"] * after)
    one = lockstep(list(shared_programs(ImportanceSolver("box", steps=1, eta=0.5, shared=True, keep="last"), 3)))
    torch.testing.assert_close(one[0].importance["a"], (1 - 0.5 * sum(slopes) / 3).clamp(0, 2))
    kinds = {where.kind for where in meters[1].rows} - {"header"}
    reduced = {where.layer: t.requests for where, t in meters[1].rows.items() if where.collective == "AllReduce"}
    assert kinds == {"importance"} and {"a", "b"} <= reduced.keys()
    assert meters[1].total().requests == 4 + 1  # a sum for each step, one broadcast


def test_without_sharing_nothing_is_requested():
    solver = ImportanceSolver("box", steps=4, eta=0.5)
    for program in shared_programs(solver, 3):
        with pytest.raises(StopIteration):
            program.send(None)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"constraint": "ball"}, "constraint must be one of simplex, scaled_simplex, box, got 'ball'"),
        ({"start": "noise"}, "start must be one of"),
        ({"scope": "all"}, "scope must be one of joint, layerwise"),
        ({"keep": "first"}, "keep must be one of best, last"),
        ({"steps": -1}, "steps must be at least 0"),
        ({"refresh_every": 0}, "refresh_every at least 1"),
        ({"eta": math.nan}, "eta must be positive"),
        ({"lam": -1.0}, "lam not negative"),
        ({"constraint": "box", "low": 2.0}, "low and high must satisfy 0 <= low < high"),
        ({"constraint": "simplex", "eta": 1e8, "lam": 1e-3}, "simplex needs eta \\* lam < 1"),
        ({"constraint": "box", "lam": 0.1}, "which a box does not have"),
    ],
)
def test_wrong_settings_are_refused_by_name(settings, words):
    with pytest.raises(CompositionError, match=words):
        ImportanceSolver(**settings)
