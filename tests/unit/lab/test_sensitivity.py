"""Does the loss mind when one layer is compressed?"""

import pytest
import torch

from thinwire import checkpoint
from thinwire_lab.configuration.config import OptimizerConfig
from thinwire_lab.published.sensitivity import (
    build_sensitivity_jobs,
    correlate,
    pearson,
    rank_values,
    spearman,
    summarize,
)
from thinwire_lab.running.run_jobs import import_object

TASK = {"name": "digits", "settings": {"width": 16, "batch": 16}}


def run(jobs):
    return [import_object(job.function)(None, dict(job.argument), lambda news: None) for job in jobs]


def test_coarser_candidates_have_larger_errors_and_runs_repeat():
    jobs = build_sensitivity_jobs(
        TASK,
        ["topk(density=0.5)", "topk(density=0.02)"],
        ["0.weight", "2.weight"],
        OptimizerConfig(lr=0.1),
        steps=12,
        before=4,
    )
    results = run(jobs)
    assert [one["layer"] for one in results] == ["0.weight", "2.weight"]
    for one in results:
        fine, coarse = one["rows"]
        assert 0 < fine["error"] < coarse["error"]
        assert fine["loss"] - one["dense_loss"] == fine["loss_difference"]
        assert abs(fine["loss_difference"]) < abs(coarse["loss_difference"])
    assert run(jobs[:1]) == results[:1]
    shown = summarize(results)
    assert shown["correlations"]["error"]["points"] == 4
    assert len(shown["figures"][0]["curves"]) == 2


def test_what_loses_nothing_changes_nothing():
    (one,) = run(
        build_sensitivity_jobs(TASK, ["topk(density=1.0)"], ["0.weight"], OptimizerConfig(lr=0.1), steps=3, before=2)
    )
    assert one["rows"][0]["error"] == 0 and one["rows"][0]["loss_difference"] == 0


def test_runs_start_from_a_stored_checkpoint(tmp_path):
    (fresh,) = run(build_sensitivity_jobs(TASK, ["sign()"], ["0.weight"], OptimizerConfig(lr=0.1), steps=3, before=0))
    from thinwire_lab.tasks import make_task
    from thinwire_lab.tasks.splits import Split

    task = make_task("digits", TASK["settings"], None)
    task.prepare(1, Split.parse("iid"))
    learner = task.learner(0, 1, Split.parse("iid"), 0)
    weights = {name: torch.zeros_like(p) for name, p in learner.parameters.items()}
    state = {"0": {"weights": weights, "learner": learner.state_dict()}, "done": 7}
    checkpoint.save(tmp_path, state, step=7, rank=0, world_size=1)
    jobs = build_sensitivity_jobs(
        TASK, ["sign()"], ["0.weight"], OptimizerConfig(lr=0.1), steps=3, stored=str(tmp_path)
    )
    (stored,) = run(jobs)
    assert stored["dense_loss"] != fresh["dense_loss"]
    assert stored["rows"][0]["error"] == 0  # no gradient reaches the first layer through weights of zero


def test_correlations_of_known_numbers():
    xs = [1.0, 2.0, 3.0, 4.0]
    assert pearson(xs, [2.0, 4.0, 6.0, 8.0]) == pytest.approx(1)
    assert pearson(xs, [1.0] * 4) == 0
    assert spearman(xs, [1.0, 8.0, 27.0, 1e6]) == pytest.approx(1)
    assert spearman(xs, [4.0, 3.0, 2.0, 1.0]) == pytest.approx(-1)
    assert rank_values([5.0, 1.0, 5.0]) == [1.5, 0, 1.5]
    rows = [{"error": 1.0, "loss_difference": float("nan")}, {"error": 2.0, "loss_difference": 1.0}]
    assert correlate([{"rows": rows}])["points"] == 1


def test_long_runs_and_bad_texts_are_refused_before_any_starts():
    with pytest.raises(ValueError, match="steps must be 1 to 50, got 60"):
        build_sensitivity_jobs(TASK, ["sign()"], ["0.weight"], OptimizerConfig(), steps=60)
    with pytest.raises(ValueError, match="topq"):
        build_sensitivity_jobs(TASK, ["topq()"], ["0.weight"], OptimizerConfig())
