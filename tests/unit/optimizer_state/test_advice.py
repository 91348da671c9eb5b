"""The choice of a way by measured figures."""

import pytest

import thinwire
from thinwire.moments import parse_moments
from thinwire.optimizer_state.advice import advise, interpolate, load_table, parse_link


def row(way, error, payload, ns, hosts=(1, 64), asked=0, general=True, text="", task="made"):
    return [
        {"task": task, "way": way, "text": text or way, "general": general, "asked": asked, "hosts": n, "error": error,
         "payload": payload, "encode_ns": ns, "aggregate_ns": ns}
        for n in hosts
    ]  # fmt: skip


TABLE = {
    "command": "a test", "machine": "a machine",
    "rows": [
        *row("uniform(bits=8)", 0.02, 0.26, 1.0), *row("topk(density=0.01)", 0.9, 0.014, 1.0),
        *row("tensor_train(rank=4)", 0.01, 0.05, 500.0), *row("sketch(topk(density=0.1))", 0.3, 0.15, 4.0),
        *row("tensor_train(rank=3, dims=(4, 4))", 0.0, 0.001, 0.0, general=False),
    ],
}  # fmt: skip


def chosen(**asked):
    return advise(table=TABLE, **asked).composition


def test_the_quickest_that_is_tolerated_is_chosen():
    assert chosen(hosts=2, link="100mbit", tolerated_error=0.05) == "uniform(bits=8)"
    assert chosen(hosts=2, link="100mbit", tolerated_error=1.0) == "topk(density=0.01)"
    assert chosen(hosts=2, link="100kbit", tolerated_error=0.015) == "tensor_train(rank=4)"
    assert chosen(hosts=2, link="100mbit", tolerated_error=0.0) == "dense()"


def test_a_slow_way_is_for_thin_links_and_a_gather_for_few_hosts():
    assert chosen(hosts=2, link="100gbit", tolerated_error=1.0) == "dense()"
    assert chosen(hosts=64, link="10mbit", tolerated_error=0.5) == "sketch(topk(density=0.1))"
    assert chosen(hosts=64, link="10mbit", tolerated_error=0.05) == "dense()", "63 payloads of a quarter are more"


def test_the_advice_says_why_and_shows_what_was_considered():
    advice = advise(hosts=4, link="100mbit", tolerated_error=0.05, parameters=1e7, table=TABLE)
    assert advice.chosen.seconds < advice.dense.seconds and len(advice.considered) == 5
    text = str(advice)
    assert "uniform(bits=8) (4 hosts, 100mbit)" in text and "* uniform(bits=8)" in text and "a test, a machine" in text
    told = advise(hosts=2, link="100mbit", tolerated_error=0.001, table=TABLE).reason
    assert (
        told
        == "dense() (2 hosts, 100mbit): faster compositions have an update error above 0.001, the best of them 0.02."
    )


def test_more_parameters_take_longer_and_change_nothing():
    one, ten = (advise(hosts=4, link=1e8, tolerated_error=0.05, parameters=p, table=TABLE) for p in (1e6, 1e7))
    assert one.composition == ten.composition and ten.chosen.seconds == pytest.approx(10 * one.chosen.seconds)


def test_figures_between_measured_hosts_lie_between_and_of_two_tasks_the_worse_counts():
    assert (
        interpolate({1: 1.0, 4: 3.0}, 2) == 2.0
        and interpolate({1: 1.0, 4: 3.0}, 99) == 3.0
        and interpolate({2: 5.0}, 1) == 5.0
    )
    table = {
        **TABLE,
        "rows": row("uniform(bits=8)", 0.02, 0.26, 1.0) + row("uniform(bits=8)", 0.2, 0.26, 1.0, task="other"),
    }
    assert advise(hosts=4, link="1mbit", tolerated_error=0.1, table=table).composition == "dense()"
    table["rows"][0]["error"] = None  # was not finite
    assert advise(hosts=1, link="1mbit", tolerated_error=1.0, table=table).composition == "dense()"


@pytest.mark.parametrize(("link", "bits"), [("100mbit", 1e8), ("2.5 Gbit/s", 2.5e9), ("64kbit", 64e3), (1e6, 1e6)])
def test_rates_are_read(link, bits):
    assert parse_link(link) == bits


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"hosts": 0}, "hosts must be a whole number"), ({"link": "fast"}, "a rate such as"), ({"link": 0}, "a rate"),
        ({"tolerated_error": -1}, "tolerated_error must be at least 0"), ({"parameters": 0}, "parameters above 0"),
    ],
)  # fmt: skip
def test_bad_questions_are_refused(asked, says):
    with pytest.raises(thinwire.CompositionError, match=says):
        advise(**{"hosts": 2, "link": "100mbit", "tolerated_error": 0.1, **asked})


def test_what_is_shipped_gives_compositions_that_can_be_used():
    assert load_table()["command"] and {row["hosts"] for row in load_table()["rows"]} >= {1, 4}
    advice = thinwire.moments.advise(hosts=4, link="10mbit", tolerated_error=1.0)
    for estimate in advice.considered:
        parse_moments(estimate.composition)
    assert advice.composition != "dense()"
