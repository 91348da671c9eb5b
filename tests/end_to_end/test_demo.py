"""The demo in small: the same code path as `make demo`, with fewer steps."""

from dataclasses import replace

from laboratory import run_here, run_plan
from thinwire.catalog import AGGREGATORS, COMPRESSORS, MEMORIES
from thinwire.experiments.laboratory import plan_of
from thinwire.experiments.named.demo import DEMO, FEW


def test_real_processes_and_lockstep_give_equal_figures():
    small = replace(DEMO, steps=20, groups=DEMO.groups[-2:])
    result = run_plan(plan_of(small))
    assert len(result["runs"]) == 2 * len(FEW)
    (check,) = result["checks"]
    assert check["holds"], check["detail"]
    dense, *others = result["runs"][: len(FEW)]
    assert all(run["final"]["payload_bytes"] < dense["final"]["payload_bytes"] for run in others)


def test_feedback_reaches_what_plain_topk_misses_on_label_sorted_workers():
    few = replace(DEMO.groups[0], labels=("dense", "Top-k 10 %", "EF(Top-k 10 %)"))
    result = run_here(replace(DEMO, groups=(few,)))
    dense, plain, feedback = (run["final"]["loss"] for run in result["runs"])
    assert feedback < 1.1 * dense < plain


def test_the_demo_leaves_no_part_out():
    shown = " ".join(method.composition for method in DEMO.methods)
    everywhere = {"identity", "switch", "sum", "gather"}  # no way of sending, a plan's menu, or the default
    for name in (COMPRESSORS.keys() | AGGREGATORS.keys() | MEMORIES.keys()) - everywhere:
        assert f"{name}(" in shown, f"the demo does not show {name}"
