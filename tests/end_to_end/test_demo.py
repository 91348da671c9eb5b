"""The demo and the tour in small: the same code path as `make demo`, with fewer steps."""

from dataclasses import replace

from helpers.laboratory import run_here, run_plan
from thinwire.catalog import AGGREGATORS, COMPRESSORS, MEMORIES
from thinwire_lab.published.demo import DEMO, REAL
from thinwire_lab.published.tour import TOUR
from thinwire_lab.running.build_jobs import build_run_plan


def test_real_processes_and_lockstep_give_equal_figures():
    result = run_plan(build_run_plan(replace(DEMO, steps=12, groups=DEMO.groups[:2])))
    assert len(result["runs"]) == 2 * len(REAL)
    (check,) = result["checks"]
    assert check["holds"], check["detail"]
    dense, *others = result["runs"][: len(REAL)]
    assert all(run["final"]["payload_bytes"] < dense["final"]["payload_bytes"] for run in others)
    thin = {row["label"]: row["step_s"] for row in result["modelled"] if row["link"] == "100 Mbit/s"}
    assert min(thin, key=thin.get) != "dense"


def test_feedback_reaches_what_plain_topk_misses_on_label_sorted_workers():
    few = replace(TOUR.groups[0], methods=("dense", "Top-k 10 %", "EF(Top-k 10 %)"))
    result = run_here(replace(TOUR, groups=(few,)))
    dense, plain, feedback = (run["final"]["loss"] for run in result["runs"])
    assert feedback < 1.1 * dense < plain


def test_the_tour_leaves_no_part_out():
    shown = " ".join(method.composition for method in TOUR.methods)
    everywhere = {"identity", "switch", "sum", "gather"}  # no way of sending, a plan's menu, or the default
    for name in (COMPRESSORS.keys() | AGGREGATORS.keys() | MEMORIES.keys()) - everywhere:
        assert f"{name}(" in shown, f"the tour does not show {name}"
