"""low-rank-ef21 in small, and its tables."""

from dataclasses import replace

import pytest
import torch

from helpers.laboratory import run_here, run_plan, without_times
from thinwire_lab.published.low_rank_ef21.experiment import (
    EXPERIMENT,
    METHODS,
    NOT_CONTRACTIVE,
    SERVER_METHODS,
    WORLDS,
    summarize,
)
from thinwire_lab.published.low_rank_ef21.tables import build_traffic_table, classify_convergence, find_first_reaching
from thinwire_lab.running.build_jobs import build_run_plan
from thinwire_lab.tasks.logistic import hold_out, mushrooms


@pytest.mark.parametrize(
    ("norms", "word"),
    [
        ([1.0, 0.1, 0.01, 0.001], "converges"),
        ([1.0, 0.1, 0.09, 0.08], "stalls"),
        ([1.0, 0.5, 0.2, 0.05], "still falling"),
        ([1.0, 2.0, 4.0, 8.0], "diverges"),
        ([1.0, 0.5, None, None], "diverges"),
    ],
)
def test_verdicts_follow_the_stated_rule(norms, word):
    assert classify_convergence(norms, dense=1e-4) == word


def test_what_it_takes_is_read_off_the_curve():
    curve = {"step": [0, 10, 20], "payload_bytes": [0, 100, 200], "grad_norm": [1.0, None, 0.01]}
    assert find_first_reaching({"curve": curve}, 0.01) == (20, 200)
    assert find_first_reaching({"curve": curve}, 0.001) is None


def test_held_out_rows_are_no_part_of_training():
    whole = mushrooms(0.0259)
    train, test = hold_out(whole, 0.2, seed=1)
    assert len(test.labels) == round(0.2 * len(whole.labels)) and len(train.labels) + len(test.labels) == 8124
    counts = sum(part.features.sum(0) for part in (train, test))
    assert torch.equal(counts, whole.features.sum(0)) and hold_out(whole, 0.2, seed=1)[0] is train


def test_every_operator_stands_in_each_world_with_and_without_ef21():
    assert len(EXPERIMENT.groups) == 2 * len(WORLDS) + 1
    counts = [len(EXPERIMENT.methods_of(group)) for group in EXPERIMENT.groups]
    assert counts == [len(METHODS), len(METHODS) + len(NOT_CONTRACTIVE)] * 3 + [len(SERVER_METHODS)]
    assert all("ef21(" in m.composition or m.label == "dense" for m in EXPERIMENT.methods_of(EXPERIMENT.groups[1]))


def test_ef21_leaves_plain_topk_behind_on_label_sorted_workers_and_processes_change_nothing():
    few = tuple(replace(g, methods=g.methods[:2]) for g in EXPERIMENT.groups[4:6])
    small = replace(EXPERIMENT, groups=few, steps=30)
    alone, shared = (run_here(small), run_plan(build_run_plan(small), max_parallel=2))
    assert [without_times(run) for run in alone["runs"]] == [without_times(run) for run in shared["runs"]]
    norms = {run["label"]: run["final"]["grad_norm"] for run in alone["runs"]}
    assert norms["EF21(Top-17)"] < norms["Top-17"]


def test_a_gathered_topk_sends_more_than_dense_and_one_through_a_server_less():
    """Nine copies of a payload against an all-reduce: on the wire EF21 saves where there is a server."""
    labels = ("dense", "EF21(Top-28)"), ("dense, server", "EF21(Top-28), server")
    few = tuple(replace(g, methods=some) for g, some in zip(EXPERIMENT.groups[5:], labels, strict=True))
    runs = run_here(replace(EXPERIMENT, groups=few, steps=5))["runs"]
    dense, topk = build_traffic_table(runs, ("dense", "Top-28"))["rows"]
    assert topk[1] < dense[1] < dense[2] < topk[2], "payload, then sent to workers"
    assert topk[4] < 0.4 * dense[4] and topk[5] == dense[5] and topk[6] < dense[6], "to, from, both ways"
    ends = {run["label"]: run["final"]["grad_norm"] for run in runs}
    assert ends["EF21(Top-28), server"] == pytest.approx(ends["EF21(Top-28)"], rel=1e-4)


def test_a_run_that_explodes_ends_early_and_says_so():
    group = replace(EXPERIMENT.groups[1], methods=("dense", NOT_CONTRACTIVE[1].label))
    result = run_here(replace(EXPERIMENT, groups=(group,)))
    steps = {run["label"]: run["curve"]["step"][-1] for run in result["runs"]}
    dense, exploded = (run["curve"]["grad_norm"] for run in result["runs"])
    assert steps["dense"] == EXPERIMENT.steps > steps[NOT_CONTRACTIVE[1].label]
    assert (
        classify_convergence(exploded, dense[-1]) == "diverges"
        and classify_convergence(dense, dense[-1]) == "converges"
    )


def test_the_tables_tell_of_every_operator_in_every_world():
    result = run_here(replace(EXPERIMENT, steps=2, log_every=1), summarize)
    ends, wire, expected = result["tables"]
    assert [row[0] for row in wire["rows"]] == [operator.label for operator in METHODS]
    assert len(ends["rows"]) == len(METHODS) * len(WORLDS)
    assert all(len(row) == len(ends["columns"]) for row in ends["rows"])
    assert all(row[1] in ("yes", "no") or " of " in row[1] for row in expected["rows"])
