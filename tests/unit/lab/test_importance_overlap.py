"""importance-overlap in small: overlaps, noise columns, histograms."""

import numpy as np
import torch

from thinwire_lab.published.importance_mushrooms.experiment import SMOOTHNESS, load_mushrooms
from thinwire_lab.published.importance_overlap import (
    KEPT,
    KINDS,
    PUBLISHED,
    TRIALS,
    add_noise_columns,
    build_histograms,
    build_noise_table,
    build_overlap_table,
    compute_overlap,
    inspect_point,
    measure_overlaps,
    outline_histogram,
    run_noise_job,
    run_topk,
    solve_importance,
)


def test_overlap_is_a_share_of_the_first_k():
    one, other = torch.tensor([4.0, 3.0, 2.0, 1.0]), torch.tensor([4.0, 1.0, 3.0, 2.0])
    assert (
        compute_overlap(one, one, 2) == 1.0
        and compute_overlap(one, other, 2) == 0.5
        and compute_overlap(one, -one, 2) == 0.0
    )


def test_overlaps_repeat_to_the_last_bit_and_have_a_row_beside_the_published_one():
    first, again = (measure_overlaps("uniform", "w itself", 2) for _ in range(2))
    assert first == again and all(0 <= share <= 1 for share in first)
    rows = build_overlap_table({("uniform", "w itself"): first, ("normal", "w / max w"): again})["rows"]
    assert rows[-1] == ["published", "", PUBLISHED["mean"], PUBLISHED["min"], None] and len(rows) == 3


def test_trials_that_take_w_itself_are_the_published_loop_without_its_division():
    _, quick = load_mushrooms()
    weights = torch.linspace(-1, 1, 112, dtype=torch.float64)
    g, gamma = quick.gradient(weights), KEPT / SMOOTHNESS
    w = g * g / (g * g).sum()
    for _ in range(200):
        w = w * torch.exp(quick.gradient(weights - gamma * w * g) * gamma * g - 0.1 * w.log())
        w = w / w.sum()
    solver, scaled = TRIALS["w itself"]
    torch.testing.assert_close(solve_importance(quick, weights, scaled, solver) / 112, w, rtol=1e-9, atol=1e-13)


def test_noise_stands_behind_the_true_columns_and_is_as_likely_as_they_are():
    uniform, bernoulli = map(add_noise_columns, KINDS)
    true = uniform.features[:, :112]
    assert uniform.features.shape == (8124, 224) and torch.equal(true, bernoulli.features[:, :112])
    noise = bernoulli.features[:, 112:]
    assert set(noise.unique().tolist()) == {0.0, 1.0}
    assert float((noise.mean(0) - true.mean(0)).abs().max()) < 0.03
    assert abs(float(uniform.features[:, 112:].mean()) - 0.5) < 0.01


def test_histograms_count_every_column_once():
    edges = np.linspace(0, 1, 25)
    shape = outline_histogram([0.0, 0.01, 0.5, 1.0], edges)
    assert len(shape["x"]) == len(shape["y"]) == 50 and shape["y"][0] == shape["y"][-1] == 0
    assert sum(shape["y"][1:-1:2]) == 4


def test_a_kind_of_noise_gives_rows_and_figures():
    found = run_noise_job(None, {"kind": "Bernoulli", "messages": 1, "looks": [0]}, lambda news: None)
    assert set(found["runs"]) == {"TopK", "RandK, plain", "MD Greedy"}
    assert len(build_noise_table([found])["rows"]) == 2
    assert [figure["title"].split()[0] for figure in build_histograms([found])] == ["w", "|g|"]


def test_the_way_of_topk_goes_down():
    problem = add_noise_columns("Bernoulli")
    start = torch.full((224,), 0.1, dtype=torch.float64)
    end = run_topk(problem, start, 1 / problem.smoothness, 5)
    assert float(problem.loss(end)) < float(problem.loss(start))
    assert 0 <= inspect_point(problem, end, 1 / problem.smoothness)["w"]["true_share"] <= 1
