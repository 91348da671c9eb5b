"""The demo in small: the same code path as `make demo`, with fewer steps."""

from dataclasses import replace

from thinwire.experiments.named.demo import DEMO
from thinwire.experiments.runner import run_experiment


def test_real_processes_and_lockstep_give_equal_figures():
    small = replace(DEMO, steps=20, groups=DEMO.groups[1:])
    seen = []
    result = run_experiment(small, lambda *news: seen.append(news), "test")
    assert len(result["runs"]) == 2 * len(DEMO.methods)
    (check,) = result["checks"]
    assert check["holds"], check["detail"]
    assert seen[-1][1:] == (120, 120)
    dense, *others = result["runs"][: len(DEMO.methods)]
    assert all(run["final"]["payload_bytes"] < dense["final"]["payload_bytes"] for run in others)


def test_feedback_reaches_what_plain_topk_misses_on_label_sorted_workers():
    methods = tuple(m for m in DEMO.methods if m.label in ("dense", "Top-k 10 %", "EF(Top-k 10 %)"))
    result = run_experiment(replace(DEMO, groups=DEMO.groups[:1], methods=methods, steps=200), lambda *_: None, "test")
    dense, plain, feedback = (run["final"]["loss"] for run in result["runs"])
    assert feedback < 1.1 * dense < plain
