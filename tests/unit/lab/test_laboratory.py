"""Runs: the same in lockstep and on processes, the same when resumed, and folders that tell all of it."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from helpers.laboratory import run_plan, without_times
from thinwire.core import TensorSpec
from thinwire_lab.configuration.config import Experiment
from thinwire_lab.measuring.folder import RunFolder, RunFolderError
from thinwire_lab.reporting.comparison import compare_results
from thinwire_lab.running.build_jobs import build_run_plan
from thinwire_lab.running.replica import make_buckets
from thinwire_lab.running.run_jobs import import_object, run_jobs
from thinwire_lab.sources import load_run_plan
from thinwire_lab.tables import ConfigError

CONFIG = {
    "name": "small", "task": "logistic", "steps": 12, "log_every": 3, "checkpoint_every": 5, "bucket_mb": 1e-5,
    "optimizer": {"lr": "1/L", "momentum": 0.5}, "target": {"metric": "loss", "value": 0.5},
    "groups": [{"workers": 2}, {"workers": 2, "driver": "processes"}],
    "methods": {
        "dense": "dense()", "EF": "ef(topk(density=0.1))",
        "w": {"composition": "impk(density=0.2)", "importance": {"steps": 3, "refresh_every": 4}},
    },
}  # fmt: skip


def experiment(**changes):
    return Experiment.from_dict({**CONFIG, **changes})


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """One run of everything, and its folder."""
    place = tmp_path_factory.mktemp("lab") / "small"
    return run_plan(build_run_plan(experiment()), place), place


def test_processes_give_the_figures_of_lockstep(stored):
    result, _ = stored
    (check,) = result["checks"]
    assert check["holds"] and "3 runs" in check["detail"]


def test_a_run_tells_all_of_it(stored):
    result, place = stored
    dense, feedback, weighted = (run for run in result["runs"] if run["driver"] == "processes")
    assert dense["curve"]["step"] == [0, 3, 6, 9, 12] and len(set(map(len, dense["curve"].values()))) == 1
    assert dense["final"]["loss"] < 0.5 and dense["steps_to_target"] in (3, 6, 9, 12)
    assert set(dense["times"]) >= {"compute", "encode", "communication", "waiting", "measure"}
    assert all(seconds >= 0 for seconds in dense["times"].values())
    assert weighted["times"]["solver"] > 0 and "solver" not in dense["times"]
    assert feedback["bytes_by_kind"]["header"] > 0 and feedback["bytes_by_layer"]["weights"] > 0
    assert max(dense["heatmap"]["layers"]["weights"]) == 0 < min(feedback["heatmap"]["layers"]["weights"])
    assert sum(feedback["histograms"]["|g|"]["counts"]) > 0 and set(weighted["histograms"]) == {"|g|", "w"}
    assert {row["link"] for row in result["modelled"]} == {"100 Mbit/s", "1 Gbit/s", "10 Gbit/s"}
    assert {run["group"] for run in result["modelled"]} == {dense["group"]}, "only clocks that had the cores count"
    events = json.loads((place / dense["trace"]).read_text())["traceEvents"]
    assert {event["name"] for event in events} >= {"process_name", "compute", "encode", "send"}
    assert {event["pid"] for event in events} == {0, 1} and all(event.get("dur", 0) >= 0 for event in events)


def test_nothing_is_run_twice(stored, tmp_path):
    result, place = stored
    seen = []

    class Reporter:
        def on_start(self, jobs, done):
            seen.append((len(jobs), done))

        def on_finish(self, job, result):
            seen.append(job.key)

    again = run_jobs(build_run_plan(experiment()), RunFolder.open(place), Reporter())
    assert seen == [(6, 6)] and again["runs"] == result["runs"]


@pytest.mark.parametrize("step", (5, 10))
@pytest.mark.parametrize("method", CONFIG["methods"])
def test_a_run_that_goes_on_from_a_checkpoint_gives_the_same(tmp_path, monkeypatch, method, step):
    job = next(j for j in build_run_plan(experiment(groups=[{"workers": 3}])).jobs if j.argument["label"] == method)
    run = import_object(job.function)
    straight = run(None, {**job.argument, "folder": str(tmp_path / "a")}, lambda progress: None)

    class Cut(Exception):
        pass

    def cut(progress):
        if progress["step"] > step:
            raise Cut

    with pytest.raises(Cut):
        run(None, {**job.argument, "folder": str(tmp_path / "b")}, cut)
    progress = []
    resumed = run(None, {**job.argument, "folder": str(tmp_path / "b")}, progress.append)
    assert progress[0]["step"] >= step and without_times(resumed) == without_times(straight)


LONG = {**CONFIG, "steps": 200, "checkpoint_every": 10, "methods": {"EF": "ef(topk(density=0.1))"}}


def started(folder, **changes):
    """A run in a process of its own that has stored its first checkpoint, and its plan."""
    (folder / "c.json").write_text(json.dumps({**LONG, **changes}))
    command = [sys.executable, "-m", "thinwire.cli.main", "run", str(folder / "c.json"), "--out", str(folder / "k")]
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while not list(folder.glob("k/jobs/*/checkpoint/*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    return running, load_run_plan(str(folder / "c.json"))[0]


@pytest.mark.parametrize(("driver", "sign"), [("processes", signal.SIGKILL), ("lockstep", signal.SIGINT)])
def test_a_run_that_was_stopped_resumes_and_equals_an_uninterrupted_one(tmp_path, driver, sign):
    running, plan = started(tmp_path, groups=[{"workers": 2, "driver": driver}])
    os.killpg(running.pid, sign)
    said, _ = running.communicate(timeout=60)
    assert not (tmp_path / "k" / "result.json").exists()
    if sign == signal.SIGINT:
        assert running.returncode == 130 and f"thinwire resume {tmp_path / 'k'}" in said and "Traceback" not in said
    resumed = run_jobs(plan, RunFolder.open(tmp_path / "k"))
    straight = run_plan(plan)
    assert [without_times(run) for run in resumed["runs"]] == [without_times(run) for run in straight["runs"]]


def test_a_target_that_stops_does_so_on_all_ranks(tmp_path):
    target = {"metric": "loss", "value": 0.5, "stop": True}
    result = run_plan(build_run_plan(experiment(target=target, methods={"dense": "dense()"})))
    assert all(run["steps"] == run["steps_to_target"] < 12 for run in result["runs"])


def test_seeds_share_the_workers_rows_differently_and_a_seed_repeats():
    runs = run_plan(
        build_run_plan(experiment(seeds=[1, 2], groups=[{"workers": 2}], methods={"r": "randomk(density=0.1)"}))
    )
    again = run_plan(
        build_run_plan(experiment(seeds=[2], groups=[{"workers": 2}], methods={"r": "randomk(density=0.1)"}))
    )
    one, two = runs["runs"]
    assert one["curve"]["loss"] != two["curve"]["loss"]
    assert without_times(again["runs"][0]) == without_times(two)


def test_a_new_run_takes_a_place_beside_an_old_one(tmp_path):
    first, second = (RunFolder.create(tmp_path / "x", {"a": 1}, "c") for _ in range(2))
    assert (first.path.name, second.path.name) == ("x", "x-2")
    with pytest.raises(RunFolderError, match=r"config\.json"):
        RunFolder.open(tmp_path)


def test_two_results_are_compared_method_by_method(stored):
    result, _ = stored
    table = compare_results(result, {**result, "runs": result["runs"][:-1]}, "a", "b")
    assert all(row[3] == row[4] for row in table["rows"]) and "w (" in table["note"]


def test_plans_come_from_names_files_and_functions(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(f"def small():\n    return {CONFIG!r}\n")
    plan, config = load_run_plan(f"{file}:small", seeds=(3,))
    assert config["seeds"] == (3,) and len(plan.jobs) == 6
    for what, words in (
        ("demmo", "did you mean"),
        (f"{file}:large", "no function"),
        (str(tmp_path), "no such file and no named"),
    ):
        with pytest.raises(ConfigError, match=words):
            load_run_plan(what)
    with pytest.raises(ConfigError, match="--published-size"):
        load_run_plan(f"{file}:small", published_size=True)


def test_buckets_begin_with_the_last_layer_and_hold_every_layer_once():
    layers = [TensorSpec(name, (size,)) for name, size in (("a", 10), ("b", 100), ("c", 10), ("d", 10))]
    assert make_buckets(layers, 80e-6) == [["d", "c"], ["b"], ["a"]]
    assert make_buckets(layers, 1.0) == [["d", "c", "b", "a"]]
