"""The benchmark of DDP steps: its statistics, its picture, and that every method of sending trains."""

import json

import numpy as np
import pytest

from thinwire.catalog import parse
from thinwire.cli.main import main
from thinwire.core import CompositionError
from thinwire.drivers.processes import run_ranks
from thinwire_lab.bench.ddp import WARMUP_STEPS
from thinwire_lab.bench.ddp_bound import Bound
from thinwire_lab.bench.ddp_methods import (
    BARE_HOOK,
    COPY_METHOD,
    FLOOR,
    FLOOR_METHOD,
    ISOLATED_METHODS,
    METHODS,
    TORCH_POWERSGD,
    DDPMethod,
    select_methods,
)
from thinwire_lab.bench.ddp_summary import DDPRow, Estimate, combine_runs, estimate, summarize
from thinwire_lab.bench.step_plot import draw_steps
from thinwire_lab.bench.trace import make_chrome_trace, sum_per_step_ms


def test_a_step_takes_as_long_as_its_slower_rank_and_is_compared_within_its_turn():
    methods = (DDPMethod(FLOOR, "nothing"), DDPMethod("ours", "dense()"))
    first = [[[1.0, 0.5, 0], [1.2, 0.6, 2e6]], [[2.0, 0.5, 0], [2.2, 0.8, 2e6]], [[1.0, 0.5, 0], [1.0, 0.7, 2e6]]]
    second = [[[0.9, 0.7, 0], [1.5, 0.6, 4e6]], [[1.0, 0.7, 0], [3.0, 0.8, 4e6]], [[1.0, 0.7, 0], [1.1, 0.9, 4e6]]]
    floor, ours = summarize(methods, [first, second], shared=False)
    assert (floor.step_ms.median, floor.floors.median, floor.sent_mb) == (1000, 1, 0)
    assert ours.step_ms.median == 1500 and ours.floors.median == pytest.approx(1.5)  # of 1.5, 3.0 / 2.0 and 1.1
    assert (ours.sent_mb, ours.cpu_ms) == (3, 800)
    assert summarize(methods, [first, second], shared=True)[1].sent_mb == 1.5  # one device counts for both


def test_what_the_library_costs_is_compared_with_the_bare_hook_within_a_turn():
    methods = (
        FLOOR_METHOD,
        DDPMethod(BARE_HOOK, "bare hook"),
        DDPMethod("thinwire", "dense()"),
        DDPMethod("a", "plain"),
    )
    turns = [[[1.0, 0, 0], [b, 0, 0], [ours, 0, 0], [3.0, 0, 0]] for b, ours in ((1.1, 1.2), (2.0, 2.3), (1.0, 1.5))]
    floor, bare, ours, plain = summarize(methods, [turns], shared=False)
    assert ours.minus_bare_ms.median == pytest.approx(300)
    assert floor.minus_bare_ms is bare.minus_bare_ms is plain.minus_bare_ms is None
    assert (
        summarize(methods[:1] + methods[2:], [[turn[:1] + turn[2:] for turn in turns]], False)[1].minus_bare_ms is None
    )


def test_several_runs_give_the_median_of_their_medians_with_the_range():
    def row(method, ms, bound=None):
        wide = Estimate(ms, 0, 1e6)
        return DDPRow(method, wide, Estimate(ms / 100, 0, 9), 1.0, ms, wide, bound and Bound(bound, bound / 100, 1, 2))

    runs = [[row("a", 100), row("b", 130, 110)], [row("a", 104)], [row("a", 90), row("b", 120, 112)]]
    a, b = combine_runs(runs)
    assert (a.step_ms, a.runs, a.bound) == (Estimate(100, 90, 104), 3, None)
    assert (b.step_ms, b.runs) == (Estimate(125, 120, 130), 2)  # one of its runs was aborted
    assert b.floors == Estimate(1.25, 1.2, 1.3) and b.minus_bare_ms == Estimate(125, 120, 130)
    assert (b.bound.step_ms, b.bound.floors) == (111, pytest.approx(1.11))
    assert combine_runs(runs[:1]) == runs[0]  # intervals of one run are kept


def test_methods_are_selected_by_their_labels_and_the_floor_is_always_among_them():
    always = [FLOOR_METHOD, COPY_METHOD]
    assert select_methods([]) == [list(METHODS), list(ISOLATED_METHODS)]
    (chosen,) = select_methods(["BARE", "1 MB"])
    assert chosen[:2] == always and [m.label for m in chosen[2:]] == [BARE_HOOK, "thinwire ef(topk 1 %), 1 MB buckets"]
    assert select_methods(["torch PowerSGD"]) == [list(ISOLATED_METHODS)]
    assert select_methods([FLOOR]) == [always]
    (ours,) = select_methods([], baselines=False)
    assert ours[:2] == always and all(m.label.startswith(("thinwire", "bare")) for m in ours[2:]) and len(ours) > 8
    with pytest.raises(CompositionError, match=r"'adam' is in no label.*plain DDP"):
        select_methods(["topk", "adam"])
    with pytest.raises(CompositionError, match="fp16"):
        select_methods(["fp16"], baselines=False)


def test_an_interval_holds_its_median_and_narrows_with_steps():
    draws = np.random.default_rng(1).normal(10, 1, 4000)
    few, many = estimate(draws[:20]), estimate(draws)
    for found in (few, many):
        assert found.low <= found.median <= found.high
    assert many.high - many.low < (few.high - few.low) / 3
    assert estimate(np.full(5, 2.0)).high == 2.0


def test_a_trace_has_a_line_for_each_thread_and_its_sums_are_of_a_step():
    rank = [("forward", "training", 1.0, 1.5), ("backward", "training", 1.5, 2.5), ("sending", "comm", 2.0, 2.25)]
    assert sum_per_step_ms([rank, rank], 5) == pytest.approx({"forward": 100, "backward": 200, "sending": 50})
    events = make_chrome_trace({"ours": [rank, rank]})["traceEvents"]
    whole = [event for event in events if event["ph"] == "X"]
    assert {(event["pid"], event["tid"]) for event in whole} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert min(event["ts"] for event in whole) == 0 and sum(event["dur"] for event in whole) == pytest.approx(3.5e6)


def test_every_method_has_its_curve_against_the_rate(tmp_path):
    def row(method, seconds):
        return {"method": method, "step_ms": {"median": 1e3 * seconds, "low": 0, "high": 0}}

    rows = [row("plain DDP", 4.0), row("ours", 0.5)]
    found = [{"model": "gpt", "rate": rate, "rows": rows} for rate in ("lo", "1gbit", "100mbit")]
    draw_steps(
        [*found, {"model": "resnet18", "rate": "1gbit", "rows": [row("another", 1.0)]}], "gpt", tmp_path / "a.svg"
    )
    svg = (tmp_path / "a.svg").read_text()
    assert svg.startswith("<svg") and "plain DDP" in svg and "ours" in svg and "another" not in svg


@pytest.mark.parametrize(("option", "value"), [("--rate", "7furlongs"), ("--steps", "0"), ("--model", "bert")])
def test_what_cannot_be_measured_is_refused_before_anything_starts(option, value, capsys):
    try:
        code = main(["bench", "ddp", option, value])
    except SystemExit as refused:
        code = refused.code
    assert code == 2 and value in capsys.readouterr().err


def test_every_turn_measures_every_method():
    ours = [method for method in METHODS if method.label.startswith("thinwire")]
    torch_powersgd = [method for method in ISOLATED_METHODS if method.label == TORCH_POWERSGD]
    methods = [FLOOR_METHOD, COPY_METHOD, *ours[-1:], *torch_powersgd]  # test_bare_hook.py has the bare hook
    order = {"model": "gpt", "blocks": 1, "rate": "lo", "steps": 1, "device": "lo"}
    order["methods"] = [vars(method) for method in methods]
    told = []
    results = run_ranks(2, "thinwire_lab.bench.ddp:run_rank", json.loads(json.dumps(order)), on_progress=told.append)
    assert len(told) == WARMUP_STEPS + 1
    for rank in results:
        (turn,) = rank["figures"]
        assert rank["pieces"].keys() == rank["buckets"].keys() == {ours[-1].label}
        for pieces in rank["pieces"].values():
            assert {"forward", "backward", "encoding and decoding", "sending", "waiting"} <= {p[0] for p in pieces}
        assert len(turn) == len(methods) and all(seconds > 0 and busy > 0 for seconds, busy, _ in turn)
        ((copy_s, latency_s),), (leads,) = rank["load"], rank["leads"]
        assert copy_s > 0 and latency_s > 0
        assert leads[-1][1] == 0 and [lead for _, lead in leads] == sorted((s for _, s in leads), reverse=True)
        buckets = rank["buckets"][ours[-1].label]  # of 1 MB
        assert sum(numel for numel, _ in buckets) == leads[-1][0] and len(buckets) > 3
        assert all(num_bytes > 0 for _, num_bytes in buckets)


def test_each_method_of_thinwire_is_a_composition():
    for method in METHODS:
        if method.label.startswith("thinwire"):
            assert parse(method.sends) is not None
