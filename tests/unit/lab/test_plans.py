"""What a run tells of its plans."""

import pytest

from helpers.laboratory import run_here, without_times
from thinwire.catalog import parse
from thinwire.controller_report import option_text
from thinwire_lab.configuration.config import Experiment, Method, OptimizerConfig, RunGroup, TaskConfig

ADAPTIVE = "ef(adapt(topk(density=0.1), qsgd(bits=4), controller=lgreco(start=4, every=4, window=2)))"


def experiment(steps=12):
    return Experiment(
        name="adaptive",
        task=TaskConfig("digits", {"width": 16, "batch": 16}),
        methods=(Method("dense", "dense()"), Method("adaptive", ADAPTIVE)),
        groups=(RunGroup("2 workers", 2),),
        optimizer=OptimizerConfig(lr=0.05),
        steps=steps,
        log_every=4,
    )


def test_a_run_keeps_its_plans_what_they_cost_and_the_bytes_of_its_buckets():
    dense, adaptive = run_here(experiment())["runs"]
    assert dense["plans"] == [] and dense["controller"] == {} and dense["plan"] == {}
    first, *later = adaptive["plans"]
    assert first["step"] == 0 and all(plan["step"] % 4 == 0 for plan in later) and later
    one = first["layers"]["0.weight"]
    assert one["option"] == "topk(density=0.1)" and one["bytes"] > 0 and one["saving"] > 1
    assert adaptive["plan"] == {name: kept["option"] for name, kept in adaptive["plans"][-1]["layers"].items()}
    told = adaptive["controller"]
    assert told["decisions"] == 2 and told["seconds"] > 0 and told["bytes"] > 0
    assert sum(adaptive["bytes_by_bucket"]) == sum(adaptive["bytes_by_layer"].values())


def test_two_equal_runs_make_the_same_plans():
    once, again = (run_here(experiment())["runs"][1] for _ in range(2))
    assert without_times(once) == without_times(again)


@pytest.mark.parametrize(
    "text, told",
    [
        ("powersgd()", "powersgd(rank=4)"),
        ("two_hop(qsgd(block=64))", "two_hop(qsgd(bits=4, block=64))"),
        ("topk(density=0.01)", "topk(density=0.01)"),
        ("powersgd(dims=(14, 8))", "powersgd(rank=4, dims=(14, 8))"),
        ("dense()", "dense()"),
        ("quantile_threshold(values=uniform(bits=4))", "quantile_threshold(density=0.01, values=uniform(bits=4))"),
        ("qsgd(bits=8)", "qsgd(bits=8)"),
    ],
)
def test_options_are_shown_with_their_tunable_setting(text, told):
    assert option_text(parse(text)) == told
