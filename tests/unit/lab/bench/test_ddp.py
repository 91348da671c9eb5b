"""The benchmark of DDP steps: its statistics, its picture, and that every method of sending trains."""

import json

import numpy as np
import pytest

from thinwire.cli.main import main
from thinwire.drivers.processes import run_ranks
from thinwire_lab.bench.ddp import FLOOR, ISOLATED_METHODS, METHODS, WARMUP_STEPS, DDPMethod, estimate, summarize
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
    methods = METHODS[-1:] + ISOLATED_METHODS  # ours, the floor and torch's PowerSGD
    order = {"model": "gpt", "rate": "lo", "steps": 1, "methods": [vars(method) for method in methods], "device": "lo"}
    told = []
    results = run_ranks(2, "thinwire_lab.bench.ddp:run_rank", json.loads(json.dumps(order)), on_progress=told.append)
    assert len(told) == WARMUP_STEPS + 1
    ours = {method.label for method in methods if "(" in method.sends}
    for rank in results:
        (turn,) = rank["figures"]
        assert rank["pieces"].keys() == ours
        for pieces in rank["pieces"].values():
            assert {"forward", "backward", "encoding and decoding", "sending", "waiting"} <= {p[0] for p in pieces}
        assert len(turn) == len(methods) and all(seconds > 0 and busy > 0 for seconds, busy, _ in turn)
