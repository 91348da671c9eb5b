"""Descents of one worker: the harness of the importance experiments."""

import math

import pytest
import torch

from thinwire.core import loopback
from thinwire_lab.published.descent import LAYER, GradientOnly, StopRule, count_legacy_bits, descend
from thinwire_lab.published.importance_mushrooms.experiment import (
    METHODS,
    PUBLISHED,
    SMOOTHNESS,
    SOLVERS,
    WITH_Q,
    check_repeatability,
    load_mushrooms,
    make_start,
    run_method,
)
from thinwire_lab.published.importance_mushrooms.tables import (
    build_claims,
    build_figures,
    build_outcome_table,
    build_time_table,
)

BY_LABEL = {operator.label: operator for operator in METHODS}


class Bowl:
    """|x|² / 2."""

    def gradient(self, weights):
        return weights.clone()


def test_topk_with_q_gives_the_published_figures():
    figures = run_method(BY_LABEL["TopK"], True, WITH_Q).final_figures()
    assert figures["reached"] and {name: figures[name] for name in PUBLISHED} == PUBLISHED


def test_legacy_bits_count_neither_signs_nor_zeros_nor_what_is_not_below_one():
    assert count_legacy_bits(torch.tensor([0.0, 1.0, 4.0])) == 0
    assert count_legacy_bits(torch.tensor([0.5, -0.5, 0.25, 2.0**-3, 2.0**-7])) == 1 + 1 + 2 + 2 + 3


def test_a_descent_ends_where_it_is_told():
    ones = torch.ones(4, dtype=torch.float64)
    arrived = descend(Bowl(), "dense()", ones, 0.5, StopRule(tolerance=0.2))
    assert arrived.reached and arrived.norms == [1.0, 0.5, 0.25, 0.125] and arrived.iterations == 2
    assert descend(Bowl(), "dense()", ones, 0.5, StopRule(messages=1)).final_figures()["reached"] is False
    exploded = descend(Bowl(), "dense()", ones, 4.0, StopRule(divergence=10))
    assert not exploded.reached and exploded.norms[-1] == 27
    counted = descend(Bowl(), "nearest_power2()", ones / 16, 1e-3, StopRule(bits=24))
    assert counted.bits[-1] == 24 and counted.iterations == 1  # 2^-4 has p = 4, three bits each


def test_bytes_are_those_of_the_meter_and_curves_keep_their_ends():
    trace = descend(Bowl(), "dense()", torch.ones(8, dtype=torch.float64), 1e-3, StopRule(messages=70))
    assert trace.payload_bytes[1] - trace.payload_bytes[0] >= 64
    thin = trace.sample_curves(max_points=10)
    assert 10 <= len(thin["norm"]) <= 13 and thin["norm"][-1] == trace.norms[-1] and thin["norm"][0] == 1.0


def test_a_repeated_run_gives_the_same_figures():
    assert check_repeatability(messages=3)["holds"]


def test_the_solver_asks_the_quick_form_and_the_descent_the_exact_one():
    problem, quick = load_mushrooms()
    point = torch.linspace(-1, 1, 112, dtype=torch.float64)
    torch.testing.assert_close(quick.gradient(point), problem.gradient(point), rtol=1e-12, atol=1e-14)
    loss, gradient = GradientOnly(quick).value_and_gradient({"weights": point})
    assert math.isnan(loss) and torch.equal(gradient["weights"], quick.gradient(point))


@pytest.mark.parametrize("method", [op for op in METHODS if op.step == 1.0], ids=lambda op: op.label)
@pytest.mark.parametrize("quantized", [True, False], ids=["Q", "plain"])
def test_every_method_takes_its_first_messages(method, quantized):
    trace = run_method(method, quantized, StopRule(messages=2))
    assert len(trace.norms) == 3 and all(map(math.isfinite, trace.norms))
    assert trace.payload_bytes[-1] > 0 and (trace.solver_seconds > 0) == bool(method.solver)


def test_w_is_what_the_published_loop_gives():
    problem, quick = load_mushrooms()
    weights, gamma = make_start(), 1 / SMOOTHNESS
    gradient = problem.gradient(weights)
    w = torch.full((112,), 1 / 112, dtype=torch.float64)
    box = torch.full((112,), 0.5, dtype=torch.float64)
    for _ in range(100):
        slope = -problem.gradient(weights - gamma * (w / w.max()) * gradient) * gamma * gradient
        w = w * torch.exp(-(slope + 0.1 * torch.log(w)))
        w = w / w.sum()
        box = (box + problem.gradient(weights - gamma * box * gradient) * gamma * gradient).clamp(0, 1)
    for name, expected in (("simplex", w), ("box", box)):
        program = SOLVERS[name].solve(GradientOnly(quick), {LAYER: weights}, {LAYER: gradient}, gamma)
        torch.testing.assert_close(loopback(program).importance[LAYER], expected, rtol=1e-9, atol=1e-12)


def found_row(label, quantized, iterations, reached=True, norm=1e-6):
    curve = {"norm": [1.0, norm], "legacy_bits": [0, 100], "payload_bytes": [0, 50]}
    return {"label": label, "quantized": quantized, "composition": "c", "iterations": iterations, "reached": reached,
            "norm": norm, "legacy_bits": 100, "payload_bytes": 50, "curve": curve, "seconds": 2.0,
            "solver_seconds": 1.0}  # fmt: skip


def test_claims_are_read_off_the_rows():
    iterations = {"TopK": 1000, "RandK, plain": 1500, "RandK, scaled": 300, "MD Greedy": 900, "MD Stochastic": 1400}
    rows = []
    for operator in METHODS:
        reached = not operator.label.startswith("GD")
        norm = 1e-6 if reached else 0.1 / operator.step
        rows += [
            found_row(operator.label, q, iterations.get(operator.label, 1010), reached, norm) for q in (True, False)
        ]
    held = [row[1] for row in build_claims(rows)["rows"]]
    assert held == ["yes", "no", "yes", "1 of 4", "yes", "yes", "yes", "yes", "yes", "no"]
    table = build_outcome_table(rows)
    assert len(table["rows"]) == len(METHODS) and table["rows"][-1][1] is None
    assert [len(figure["curves"]) for figure in build_figures(rows)] == [len(METHODS)] * 3
    assert build_time_table(rows)["rows"][0][-1] == 0.5
