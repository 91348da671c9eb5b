"""The benchmark of time to accuracy: when a target is reached, what is stored and repeated, and that methods train."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from helpers import tiny_data
from thinwire.cli import bench_accuracy
from thinwire.cli.main import main
from thinwire.drivers.processes import run_ranks
from thinwire_lab.bench import accuracy
from thinwire_lab.bench.accuracy import (
    METHODS,
    TASKS,
    AccuracyRun,
    AccuracyTask,
    is_finished,
    list_runs,
    merge_ranks,
    open_folder,
    read_runs,
)  # fmt: skip
from thinwire_lab.bench.accuracy_report import build_result, find_target
from thinwire_lab.measuring.folder import RunFolderError
from thinwire_lab.tasks import make_task
from thinwire_lab.tasks.splits import Split

CIFAR = TASKS["cifar10"]


def make_curve(values, step_s=1.0, metric="accuracy"):
    count = len(values)
    times = [step_s * at for at in range(count)]
    return {"step": list(range(count)), metric: values, "seconds": times, "wire_bytes": [10 * t for t in times]}


def store(folder, method, seed, values=(0.1, 0.3, 0.6, 0.7), step_s=1.0, task=CIFAR, **more):
    run = AccuracyRun("cifar10", method, seed)
    facts = {"model": "slim", "parameters": 307_018, "batch": 32, "cut": "some of CIFAR-10"}
    found = {
        "task": "cifar10", "method": method, "seed": seed, "settings": json.loads(json.dumps(task.to_json())),
        "machine_s": 60.0, "curve": make_curve(list(values), step_s), "compute_s": 0.2, "facts": facts,
    }  # fmt: skip
    if "error" in more:
        del found["curve"], found["compute_s"], found["facts"]
    folder.store_result(run.key, found | more)
    return run


@pytest.fixture
def folder(tmp_path):
    return open_folder(tmp_path / "runs", "thinwire bench accuracy")


def table(folder):
    (found,) = build_result(folder)["tables"]
    return {row[0]: dict(zip(found["columns"], row, strict=True)) for row in found["rows"]}


# the target


def test_a_target_is_reached_when_the_mean_of_two_evaluations_passes_it():
    spike = make_curve([0.1, 0.2, 0.8, 0.1, 0.4, 0.5, 0.6])
    reached = find_target(spike, "accuracy", 0.5)
    assert reached == (2.0, 20.0)  # (0.2 + 0.8) / 2
    assert find_target(spike, "accuracy", 0.55) == (6.0, 60.0)
    assert find_target(spike, "accuracy", 0.56) is None


def test_perplexity_is_lowered_to_its_target_and_values_that_are_not_finite_do_not_pass():
    curve = make_curve([100.0, None, 1.0, 12.0, 9.0], metric="perplexity")
    assert find_target(curve, "perplexity", 6.5) == (3.0, 30.0)
    assert find_target(curve, "perplexity", 6.4) is None


def test_a_run_takes_as_long_as_its_slower_rank_in_every_interval():
    first = {"curve": {"step": [0, 5, 10], "accuracy": [0.1, 0.2, 0.3]}, "seconds": [0, 2.0, 1.0]}
    second = {"curve": {"step": [0, 5, 10]}, "seconds": [0, 1.0, 3.0]}
    sides = ({"sent_bytes": [0, 10, 10], "compute_s": 0.1}, {"sent_bytes": [0, 20, 30], "compute_s": 0.2})
    merged = merge_ranks([each | side | {"facts": {}} for each, side in zip((first, second), sides, strict=True)])
    assert merged["curve"]["seconds"] == [0, 2.0, 5.0] and merged["curve"]["wire_bytes"] == [0, 15.0, 35.0]
    assert merged["compute_s"] == 0.2 and merged["curve"]["accuracy"] == [0.1, 0.2, 0.3]


# what is stored


def test_the_first_seed_is_complete_before_the_second_begins():
    runs = list_runs(["cifar10", "wikitext2"], ["plain", "topk"], [1, 2])
    assert [run.seed for run in runs] == [1] * 4 + [2] * 4 and len({run.key for run in runs}) == 8


def test_a_finished_run_is_not_repeated_and_a_failed_one_is(folder):
    good, bad = store(folder, "plain", 1), store(folder, "topk", 1, error="rank 1 of 2 failed")
    assert is_finished(folder, good, CIFAR) and not is_finished(folder, bad, CIFAR)
    assert not is_finished(folder, AccuracyRun("cifar10", "plain", 2), CIFAR)
    assert is_finished(folder, good, replace(CIFAR, target=0.9))  # the target is applied to what is stored
    with pytest.raises(RunFolderError, match=r"was run with steps \d+, not 60; use another --folder"):
        is_finished(folder, good, replace(CIFAR, steps=60))


def test_settings_survive_a_file():
    for task in TASKS.values():
        assert AccuracyTask.from_json(json.loads(json.dumps(task.to_json()))) == task


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="not empty"):
        open_folder(tmp_path, "")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(RunFolderError, match="another kind"):
        open_folder(tmp_path, "")


# the report


def test_a_row_says_how_many_seeds_it_has_and_how_many_reach_the_target(folder):
    for seed in (1, 2, 3):
        store(folder, "plain", seed, step_s=2.0)
    store(folder, "topk", 1, step_s=0.5)
    store(folder, "fp16", 1)
    store(folder, "fp16", 2, values=(0.1, 0.2, 0.3, 0.3))
    store(folder, "torch-powersgd", 1, error="aborted")
    rows = table(folder)
    plain, ours = rows[METHODS["plain"].label], rows[METHODS["topk"].label]
    assert (plain["seeds"], plain["time to target"]) == ("3", "6 s")
    assert ours["seeds"] == "1 only" and ours["faster than plain DDP"] == "4.00×"
    half = rows[METHODS["fp16"].label]
    assert half["time to target"] == "1 of 2 reach it" and half["faster than plain DDP"] == "–"
    assert rows[METHODS["torch-powersgd"].label]["seeds"] == "1 failed"


def test_the_ratio_of_step_and_compute_is_checked_and_the_hours_are_stated(folder):
    store(folder, "plain", 1, step_s=0.7)
    result = build_result(folder)
    slow, reached = result["checks"]
    assert slow["holds"] and slow["detail"] == "3.50" and reached["holds"]
    assert "1 runs took 0.02 hours" in result["description"]
    store(folder, "plain", 1, step_s=0.3, values=[0.1, 0.2, 0.2])
    assert [check["holds"] for check in build_result(folder)["checks"]] == [False, False]


def test_the_page_has_curves_with_a_legend_and_the_target(folder, capsys):
    store(folder, "plain", 1)
    store(folder, "powersgd", 1, step_s=0.3)
    assert (
        main(["bench", "accuracy", "--show", "--folder", str(folder.path), "--task", "cifar10", "--target", "0.6"]) == 0
    )
    assert "target accuracy 60 %" in capsys.readouterr().out
    drawn = [path.read_text() for path in sorted((folder.path / "figures").glob("*.svg"))]
    assert len(drawn) == 2 and (folder.path / "report.html").is_file()
    for svg in drawn:
        assert "plain DDP" in svg and "thinwire ef(powersgd 4)" in svg and "target 60 %" in svg
    assert main(["show", str(folder.path)]) == 0  # as the folder of an experiment
    assert "plain DDP" in capsys.readouterr().out


# the command


def test_the_parser_knows_all_tasks_and_methods():
    assert set(bench_accuracy.TASKS) == set(TASKS) and tuple(METHODS) == bench_accuracy.METHODS


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--target", "0.5"], "need one --task"),
        (["--rate", "7furlongs"], "7furlongs"),
        (["--task", "cifar10", "--setting", "batch"], "must be KEY=VALUE"),
        (["--steps", "3"], "--steps must be at least"),
        (["--method", "zip"], "zip"),
        (["--data", "/nonexistent"], "cifar10 is skipped: CIFAR-10"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(words, says, capsys, tmp_path):
    try:
        code = main(["bench", "accuracy", "--folder", str(tmp_path / "runs"), *words])
    except SystemExit as refused:
        code = refused.code
    assert code == 2 and says in capsys.readouterr().err


def test_a_second_call_performs_what_the_first_left(tmp_path, monkeypatch, capsys):
    tiny_data.write_cifar(tmp_path)
    performed = []

    def perform(folder, run, task, data, on_progress):
        performed.append(run.key)
        store(folder, run.method, run.seed, task=task)
        return {"machine_s": 1.0}

    monkeypatch.setattr(accuracy, "perform", perform)
    words = ["bench", "accuracy", "--folder", str(tmp_path / "runs"), "--data", str(tmp_path), "--task", "cifar10"]
    words += ["--setting", "images=60", "--setting", "test_images=20", "--method", "plain", "--method", "topk"]
    assert main([*words, "--minutes", "0", "--seed", "1"]) == 0 and not performed
    assert "2 runs are left for the next call" in capsys.readouterr().out
    assert main([*words, "--seed", "1"]) == 0 and performed == ["cifar10-plain-1", "cifar10-topk-1"]
    assert main([*words, "--seed", "1", "--seed", "2"]) == 0
    assert performed[2:] == ["cifar10-plain-2", "cifar10-topk-2"]
    assert [(run["method"], run["seed"]) for run in read_runs(open_folder(tmp_path / "runs", ""))] == [
        ("plain", 1), ("plain", 2), ("topk", 1), ("topk", 2),
    ]  # fmt: skip


SMALL = {
    "cifar10": {"model": "slim", "images": 60, "test_images": 20, "batch": 4},
    "wikitext2": {"layers": 1, "width": 24, "heads": 2, "context": 8, "batch": 2, "tokens": "all", "valid_windows": 5},
}


@pytest.mark.parametrize(
    ("task", "method"), [("wikitext2", "plain"), ("cifar10", "torch-powersgd"), ("cifar10", "topk")]
)
def test_every_method_starts_from_the_weights_of_the_seed_and_trains(task, method, tmp_path):
    tiny_data.write_cifar(tmp_path)
    tiny_data.write_wikitext(tmp_path)
    small = replace(TASKS[task], settings=SMALL[task], steps=21)
    order = {"settings": small.to_json(), "method": vars(METHODS[method]), "seed": 1, "data": str(tmp_path)}
    plain = json.loads(json.dumps(order | {"device": "lo"}))
    found = merge_ranks(run_ranks(2, "thinwire_lab.bench.accuracy_rank:run_rank", plain))
    curve = found["curve"]
    learner = make_task(small.task, small.settings, tmp_path).learner(0, 2, Split.parse("iid"), 1)
    assert curve["loss"][0] == pytest.approx(learner.measure()["loss"], rel=1e-5) != curve["loss"][-1]
    assert curve["step"] == list(range(22)) and len(curve[small.metric]) == 22
    assert all(a < b for a, b in pairwise(curve["seconds"]))
    assert curve["wire_bytes"][-1] > 0 and found["compute_s"] > 0
