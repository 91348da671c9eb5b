"""Local training in the laboratory: the same loop, bytes by round, the mean and rank 0 both measured, resumed bit for bit."""

import pytest

from helpers.laboratory import run_here, run_plan, without_times
from thinwire_lab.configuration.config import Experiment
from thinwire_lab.running.build_jobs import build_run_plan
from thinwire_lab.running.training import Training, train_in_lockstep
from thinwire_lab.tables import ConfigError

METHODS = {
    "BSP": "dense()",
    "averaging at every step": "local()",
    "Local-SGD(4)": "local(sync_every=4)",
    "as printed": 'local(sync_every=4, payload="weights", overlap=true)',
    "DiLoCo": "local(sync_every=4, composition=ef(uniform(bits=4)), outer_optimizer=nesterov(lr=0.7, momentum=0.9))",
    "streaming": "local(sync_every=4, fragment_sync_delay=2, fragment_update_alpha=0.5, composition=ef(topk(density=0.1)))",
    "drift": "local(sync_every=drift(threshold=0.2, max_period=6))",
}
REAL = ["as printed", "DiLoCo", "streaming"]
CONFIG = {
    "name": "local", "task": "logistic", "steps": 14, "log_every": 3, "checkpoint_every": 5,
    "optimizer": {"lr": "1/L", "momentum": 0.5}, "methods": METHODS,
    "groups": [{"workers": 2, "split": "label-sorted"}, {"workers": 2, "split": "label-sorted", "driver": "processes", "methods": REAL}],
}  # fmt: skip


def experiment(**changes):
    return Experiment.from_dict({**CONFIG, **changes})


@pytest.fixture(scope="module")
def runs():
    found = run_here(experiment(groups=CONFIG["groups"][:1], checkpoint_every=1000))["runs"]
    return {run["label"]: run for run in found}


def test_processes_give_the_figures_of_lockstep(tmp_path):
    groups = [{**group, "methods": REAL} for group in CONFIG["groups"]]
    result = run_plan(build_run_plan(experiment(groups=groups)), tmp_path / "run")
    (check,) = result["checks"]
    assert check["holds"] and "3 runs" in check["detail"]
    here, there = (
        [run["measurement_bytes"] for run in result["runs"] if run["driver"] == d] for d in ("lockstep", "processes")
    )
    assert here == there and all(here)


def test_a_period_of_four_sends_a_quarter(runs):
    one, four = runs["averaging at every step"]["curve"], runs["Local-SGD(4)"]["curve"]
    assert one["step"] == four["step"] == [0, 3, 6, 9, 12, 14]
    assert four["payload_bytes"][4] == pytest.approx(one["payload_bytes"][4] / 4)
    assert four["wire_bytes"][:2] == [0, 0], "what is only looked at is counted apart"
    assert runs["Local-SGD(4)"]["measurement_bytes"] > 0 == runs["BSP"]["measurement_bytes"]


def test_averaging_at_every_step_learns_as_bsp_does(runs):
    ours, theirs = runs["averaging at every step"]["curve"]["loss"], runs["BSP"]["curve"]["loss"]
    assert ours == pytest.approx(theirs, rel=1e-4)


def test_the_mean_and_rank_0_are_both_measured(runs):
    run = runs["Local-SGD(4)"]
    assert {"loss", "rank0_loss", "accuracy", "rank0_accuracy", "consensus"} <= set(run["curve"])
    at = run["curve"]["step"].index(6)
    assert run["curve"]["consensus"][at] > 0 and run["curve"]["rank0_loss"][at] != run["curve"]["loss"][at]
    assert run["curve"]["consensus"][4] < 1e-6 * run["curve"]["consensus"][at], "just after a round they agree"
    assert "consensus" not in runs["BSP"]["curve"]


def test_every_way_learns(runs):
    for run in runs.values():
        assert run["final"]["loss"] < 0.9 * run["curve"]["loss"][0], run["label"]


def test_errors_are_those_of_the_last_round(runs):
    for label in ("DiLoCo", "streaming"):
        (errors,) = runs[label]["heatmap"]["layers"].values()
        assert len(errors) == 5 and errors[0] == 0 < errors[-1], label


@pytest.mark.parametrize("label", [label for label in METHODS if label != "BSP"])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(runs, tmp_path, label, monkeypatch):
    job = next(j for j in build_run_plan(experiment(groups=CONFIG["groups"][:1])).jobs if j.argument["label"] == label)
    argument = {**job.argument, "folder": str(tmp_path)}

    class Stopped(Exception):
        pass

    looked = Training._measure_and_decide

    def stop(self, step, tell):
        if step == 9:  # the checkpoint is of step 5, in the middle of a period
            raise Stopped
        return looked(self, step, tell)

    monkeypatch.setattr(Training, "_measure_and_decide", stop)
    with pytest.raises(Stopped):
        train_in_lockstep(None, argument, lambda news: None)
    monkeypatch.undo()
    resumed = train_in_lockstep(None, argument, lambda news: None)
    assert without_times(resumed) == without_times(runs[label])


def test_wrong_methods_are_refused_before_anything_starts():
    with pytest.raises(ConfigError, match="importance"):
        experiment(
            methods={"x": {"composition": "local(sync_every=4, composition=impk(density=0.1))", "importance": {}}}
        )
    with pytest.raises(ConfigError, match="deltas"):
        experiment(methods={"x": 'local(payload="weights", composition=ef(sign()))'})
