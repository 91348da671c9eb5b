"""optimizer-moments in small: real moments of tiny texts, ways that save what they are asked for, its tables, and runs with moments."""

import json
from dataclasses import replace

import pytest
import torch

from helpers import tiny_data
from helpers.cases import draw
from helpers.laboratory import run_here, run_plan, without_times
from thinwire.core import TensorSpec
from thinwire_lab.configuration.config import Experiment
from thinwire_lab.published.optimizer_moments import experiment
from thinwire_lab.published.optimizer_moments.measurement import compute_errors, compute_exact_mean, measure_case
from thinwire_lab.published.optimizer_moments.methods import METHODS, num_bytes
from thinwire_lab.published.optimizer_moments.tables import (
    CLAIMS,
    build_hosts_table,
    build_method_table,
    build_rules_table,
    summarize,
)
from thinwire_lab.running.build_jobs import build_run_plan
from thinwire_lab.running.training import Training, train_in_lockstep
from thinwire_lab.tables import ConfigError

TINY = {"layers": 1, "width": 16, "heads": 2, "context": 8, "batch": 2, "tokens": "all"}
ADAM = {
    "name": "averaged", "task": "logistic", "steps": 14, "log_every": 3, "checkpoint_every": 5,
    "optimizer": {"name": "adamw", "lr": 0.05},
    "methods": {
        "own": "local(sync_every=4)",
        "dense": {"composition": "local(sync_every=4)", "moments": "dense()"},
        "EF21": {"composition": "local(sync_every=4, fragment_sync_delay=2, fragment_update_alpha=0.5)", "moments": "ef21(uniform(bits=4))"},
    },
    "groups": [{"workers": 2, "split": "label-sorted"}, {"workers": 2, "split": "label-sorted", "driver": "processes"}],
}  # fmt: skip


def host(seed, shape=(600, 40)):
    m = 1e-3 * draw("gaussian", shape, seed=seed)
    v = (m / 7).square() + 1e-6 * draw("gaussian", shape, seed=seed + 50).square() * torch.logspace(-3, 0, shape[1])
    return {"a": torch.stack([m, v]), "bias": torch.stack([m[0], v[0]])}


@pytest.mark.parametrize("way", [way for way in METHODS if way.savings != (0,)], ids=lambda way: way.label)
def test_ways_save_what_they_are_asked_for(way):
    pair = host(1)["a"]
    spec = TensorSpec.of("a", pair)
    for saving in way.savings:
        text = way.texts({"a": spec}, saving)["a"]
        row = measure_case({"a": text}, [{"a": pair}], {"a": pair}, 250)
        if way.family == "homomorphic":  # sizes are fitted to large layers
            assert row["saving"] > min(0.55 * saving, 12), text
        elif way.family == "factorisation":  # ranks are whole numbers
            assert row["saving"] >= 0.95 * min(saving, spec.numel * 4 / num_bytes(text, spec)), text
        else:
            assert row["saving"] == pytest.approx(saving, rel=0.1), text


def test_dense_has_no_error_and_errors_are_those_that_were_put_in():
    hosts = [host(seed) for seed in range(3)]
    true = compute_exact_mean(hosts)
    row = measure_case(dict.fromkeys(true, "dense()"), hosts, true, 250)
    assert row["update_error"] < 1e-5 and row["saving"] == pytest.approx(1.0, rel=0.01)
    assert row["wire_saving"] == pytest.approx(1.0, rel=0.01)
    off = {name: torch.stack([1.1 * pair[0], pair[1]]) for name, pair in true.items()}
    found = compute_errors(off, true, 250)
    assert found["m_error"] == pytest.approx(0.1, rel=1e-3) and found["v_error"] == 0
    assert found["update_error"] == pytest.approx(0.1, rel=1e-3) and found["cosine"] == pytest.approx(1)


def test_a_gathers_saving_falls_with_hosts_and_break_even_follows_from_the_figures():
    hosts = [host(seed) for seed in range(8)]
    rows = [
        measure_case(
            dict.fromkeys(hosts[0], "uniform(bits=8)") | {"bias": "dense()"},
            hosts[:n],
            compute_exact_mean(hosts[:n]),
            250,
        )
        for n in (2, 8)
    ]
    assert rows[0]["wire_saving"] == pytest.approx(4 * rows[1]["wire_saving"], rel=0.05)
    two = rows[0]
    spared = two["dense_bytes"] - two["wire_bytes"]
    assert two["break_even_mbit"] == pytest.approx(8e-6 * spared / (two["encode_s"] + two["aggregate_s"]))
    assert rows[1]["update_error"] < two["update_error"], "errors of many hosts cancel"


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Both tasks, 1 to 4 hosts, every third saving; what the job was told, and its folder."""
    data = tmp_path_factory.mktemp("data")
    tiny_data.write_wikitext(data, lines=200)
    tiny_data.write_shakespeare(data, 4000)
    found = []
    for name in experiment.TASKS:
        folder = tmp_path_factory.mktemp(name)
        argument = {"task": name, "settings": TINY, "data": str(data), "folder": str(folder), "hosts": [1, 2, 4],
                    "common": 3, "own": 2, "each": 1}  # fmt: skip
        told = []
        found.append(json.loads(json.dumps(experiment.measure(None, argument, told.append))))
        assert 0 <= told[-1]["step"] <= told[-1]["steps"]
    return found, argument


def test_every_way_is_measured_for_all_hosts(measured):
    for one in measured[0]:
        assert {row["way"] for row in one["rows"]} == {way.label for way in METHODS}
        assert {row["hosts"] for row in one["rows"]} == {1, 2, 4}
        for table in (build_method_table(one), build_hosts_table(one), build_rules_table(one)):
            assert table["rows"] and all(len(row) == len(table["columns"]) for row in table["rows"])
        assert "bitsandbytes" in one["outside"]["note"]


def test_what_is_done_is_not_done_again(measured):
    found, argument = measured
    again = experiment.measure(None, argument, lambda news: None)  # its folder has hosts and cases
    assert again["rows"] == found[-1]["rows"]


def test_the_rules_prevent_explosions(measured):
    for one in measured[0]:
        largest = {(row["way"], row["rules"]): row["update_max"] for row in one["rules"]}
        for way in ("uniform(bits=4)", "topk(density=0.1)"):
            assert largest[way, "all rules"] < 5 and largest[way, "none"] > 100 * largest[way, "all rules"]


def test_claims_are_judged_and_figures_drawn(measured):
    run = {"group": "4 processes", "label": "own moments", "driver": "processes", "steps": 32, "times": {"encode": 0.1},
           "final": {"loss": 2.0, "wire_bytes": 1e6}}  # fmt: skip
    result = summarize(measured[0], [run, {**run, "label": "dense", "final": {"loss": 1.9, "wire_bytes": 3e6}}])
    claims, trained = result["tables"][-1], result["tables"][-2]
    assert [row[0] for row in claims["rows"]] == [text for text, _ in CLAIMS]
    assert all(row[1] in ("yes", "no") and row[2] for row in claims["rows"])
    assert trained["rows"][1][:4] == ["dense", 1.9, 3.0, 2.0]
    assert len(result["figures"]) == 6 and all(figure["curves"] for figure in result["figures"])
    assert len(result["measured"]) == sum(len(one["rows"]) for one in measured[0])


def test_the_plan_has_offline_jobs_and_runs_on_processes(tmp_path):
    data = tiny_data.write_shakespeare(tiny_data.write_wikitext(tmp_path, lines=400), 6000)
    plan = experiment.build_plan_for(
        experiment.build_training(thin=False),
        dict.fromkeys(experiment.TASKS, TINY),
        {**experiment.SIZE, "hosts": [1, 2]},
        str(data),
    )
    assert [job.ranks for job in plan.jobs] == [1, 1, *[4] * len(experiment.MOMENTS)]
    assert len({job.key for job in plan.jobs}) == len(plan.jobs) and json.dumps(plan.head["config"])


# Methods that average moments


def test_processes_give_the_figures_of_lockstep(tmp_path):
    result = run_plan(build_run_plan(Experiment.from_dict(ADAM)), tmp_path / "run")
    assert result["checks"][0]["holds"] and "3 runs" in result["checks"][0]["detail"]
    sent = {run["label"]: run["final"]["wire_bytes"] for run in result["runs"] if run["driver"] == "lockstep"}
    assert 2.9 < sent["dense"] / sent["own"] < 3.3, "m and v are twice the weights"
    assert "moments by ef21" in next(run["composition"] for run in result["runs"] if run["label"] == "EF21")
    losses = {run["label"]: run["final"]["loss"] for run in result["runs"]}
    assert len(set(losses.values())) == 3


def test_a_run_that_was_stopped_goes_on_bit_for_bit(tmp_path, monkeypatch):
    experiment = replace(Experiment.from_dict(ADAM), groups=Experiment.from_dict(ADAM).groups[:1])
    whole = next(run for run in run_here(replace(experiment, checkpoint_every=1000))["runs"] if run["label"] == "EF21")
    job = next(job for job in build_run_plan(experiment).jobs if job.argument["label"] == "EF21")
    argument, looked = {**job.argument, "folder": str(tmp_path)}, Training._measure_and_decide

    def stop(self, step, tell):
        if step == 9:
            raise InterruptedError
        return looked(self, step, tell)

    monkeypatch.setattr(Training, "_measure_and_decide", stop)
    with pytest.raises(InterruptedError):
        train_in_lockstep(None, argument, lambda news: None)
    monkeypatch.undo()
    assert without_times(train_in_lockstep(None, argument, lambda news: None)) == without_times(whole)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"methods": {"x": {"composition": "dense()", "moments": "dense()"}}}, "averaged in rounds"),
        ({"methods": {"x": {"composition": "local(sync_every=4)", "moments": "nothing()"}}}, "no part is called"),
        ({"optimizer": {"name": "sgd"}}, "has no moments of Adam"),
    ],
)
def test_moments_without_rounds_or_adam_are_refused(change, says):
    with pytest.raises(ConfigError, match=says):
        Experiment.from_dict({**ADAM, **change})
