"""The comparison of sketches with their rivals, with few workers; and the table of recoveries, in small."""

import pytest

from thinwire_lab.bench import sketch as bench
from thinwire_lab.published import sketch as named
from thinwire_lab.reporting import render_report


@pytest.fixture
def result(monkeypatch):
    monkeypatch.setattr(named, "WORKERS", (2, 8))
    plan = named.build_plan()
    return {"name": "sketch", "command": "", **plan.head, **named.run_job(None, {}, lambda news: None)}


def test_everything_it_claims_holds_and_formulas_stay_apart_from_what_was_metered(result):
    assert [check for check in result["checks"] if not check["holds"]] == []
    formula, metered = result["tables"][:2]
    assert "by formula" in formula["title"] and "metered" in metered["title"]
    assert len(formula["rows"]) == len(metered["rows"]) == 12
    assert len(result["figures"]) == 6
    for figure in result["figures"]:
        for curve in figure["curves"]:
            assert curve["label"].endswith("metered" if curve.get("points") else "by formula")


def test_it_makes_a_report(result):
    page = render_report(result)
    assert "Sketches against gathers" in page and page.count("<svg") >= 6


def test_recovery_falls_off_a_cliff():
    below, above = bench.measure_recovery(10_000, 11_499, 3), bench.measure_recovery(10_000, 12_999, 3)
    assert below.recovered == 0 and 0.55 < below.left < 0.65
    assert above.recovered == 1 and above.left == 0 and 15 < above.rounds < 25


def test_lanes_and_whole_numbers_read_the_same_values():
    for lanes in (1, 64):
        row = bench.measure_speed(2_000, lanes)
        assert row.error < 1e-6 and row.exact_error == 0 and row.left < 20
