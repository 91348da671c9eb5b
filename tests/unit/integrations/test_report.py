"""What `report()` and the repr of handles say, on real processes and by hand."""

import pytest

from helpers import report_jobs as jobs
from thinwire.aggregators import GatherMean
from thinwire.catalog import parse
from thinwire.core import TensorSpec, World
from thinwire.drivers.meter import Meter
from thinwire.integrations.compositions import describe_compositions, find_fallbacks
from thinwire.integrations.report import ReportContext, TrafficReport

LAYERS = [TensorSpec("a.weight", (64, 64)), TensorSpec("a.bias", (64,)), TensorSpec("head.weight", (4, 64))]


def test_a_report_has_compositions_and_reasons_and_the_handle_says_what_it_is(pool):
    (seen, report), _ = pool.run(2, jobs.reports_and_reprs)
    text, shown = seen["one step"]
    assert "1 step\n" in text and "steps" not in text
    assert "1 layer  ef(topk(density=0.05))" in text and "1 layer  ef(powersgd(rank=2))" in text
    assert "6 layers  dense(): 2 × vector (bias, norm), 3 × no pattern matched" in text
    lines = {line.split()[0]: line for line in text.splitlines()}
    assert lines["third.weight"].endswith("dense: no pattern matched")
    assert lines["first.bias"].endswith("dense: vector (bias, norm)")
    assert lines["last.weight"].endswith("a step") and lines["first.weight"].endswith("a step")
    assert "(all layers)" not in text and "headers and lengths of messages" in text and "settings" in text
    assert report.fallbacks["third.weight"] == "no pattern matched"
    assert report.sent_bytes == pytest.approx(sum(report.by_layer.values()) + sum(report.common.values()))
    for word in ("ef(topk(density=0.05)) for 1 layer", "step 1", "rank 0 of 2"):
        assert word in shown
    assert "(no step yet)" in seen["before"][0] and "×" not in seen["before"][0].partition("saving")[2][:40]
    for state in ("paused", "detached"):
        assert all(state in told for told in seen[state]) and state not in shown


def test_layers_that_are_sent_as_one_are_called_so(pool):
    text, _ = pool.run(2, jobs.report_of, "ef(flatten(topk(density=0.05)))")
    assert "whole (layers sent as one)" in text
    assert "5 layers  dense(): 4 × vector (bias, norm), 1 × fewer than dense_below=1024 elements" in text


def test_one_rank_saves_nothing_and_is_told_so(pool):
    (text,) = pool.run(1, jobs.report_of, "ef(topk(density=0.05))")
    assert "nan" not in text and "saving       - (one rank: nothing is sent)" in text


def test_local_tells_its_rounds_and_what_carries_moments(pool):
    (text, opened, closed), _ = pool.run(2, jobs.report_of_local)
    assert "rounds       local(sync_every=2)" in text and "moments      uniform(bits=4)" in text
    assert "3 layers  ef(topk(density=0.05))" in text and "dense: vector (bias, norm)" in text
    assert "LocalHandle: ef(topk(density=0.05)) for 3 layers" in opened and "step 2" in opened
    assert closed.endswith("closed>")


def test_layers_of_moments_are_named_by_place_and_shape(pool):
    (text, shown, by_layer), _ = pool.run(2, jobs.report_of_moments, False)
    assert "group 0, parameter 0 [40, 32]" in text and by_layer["0.0"] > 500
    assert "3 layers  uniform(bits=4)" in text and "4 × vector (bias, norm)" in text
    assert "1 round\n" in text and "round 1" in shown
    (text, *_), _ = pool.run(2, jobs.report_of_moments, True)
    assert "    second.weight" in text


def test_a_part_without_a_text_is_described_by_its_class():
    part = parse("ef(topk(density=0.01))")
    rules = {layer.name: part for layer in LAYERS} | {"a.bias": type(part)(GatherMean(jobs.OwnTopK(density=0.25)))}
    report = made(rules, {})
    assert "OwnTopK(density=0.25" in str(report)


def made(rules, fallbacks):
    about = ReportContext(describe_compositions(rules, fallbacks))
    return TrafficReport.of(Meter(), World(0, 2), 0, 4, {"waiting": 0.0}, 0, 0, None, about)


@pytest.mark.parametrize(
    ("wanted", "reasons"),
    [
        ("dense()", {}),
        ("sign()", {"a.bias": "vector (bias, norm)", "head.weight": "fewer than dense_below=1024 elements"}),
        ({"head.weight": "sign()"}, {"a.weight": "no pattern matched", "a.bias": "no pattern matched"}),
        ({"a.bias": "sign()", "head*": "dense()", "*": parse("sign()")}, {}),
        ("gossip(identity(), ring())", {}),
        (
            "gossip(sign(), ring())",
            {"a.bias": "vector (bias, norm)", "head.weight": "fewer than dense_below=1024 elements"},
        ),
    ],
    ids=str,
)
def test_only_what_falls_back_has_a_reason(wanted, reasons):
    assert find_fallbacks(LAYERS, wanted, 1024) == reasons


def test_many_compositions_are_cut_short():
    rules = {f"l{bits}": parse(f"qsgd(bits={bits})") for bits in (2, 3, 4, 5, 6, 7, 8)}
    rules |= {f"k{k}": parse(f"topk(density=0.0{k})") for k in range(1, 6)}
    compositions = describe_compositions(rules, {})
    assert compositions.lines()[-1] == "... and 4 more compositions"
    assert compositions.summary().endswith("9 more")
