"""A package of somebody else, from end to end: its parts and its task in texts, in `attach`, in a TOML, and by our laws."""

import json
import os
import subprocess
import sys
import warnings

import pytest

from helpers.outside_jobs import attach_outside
from helpers.outside_package import install, install_outside, on_path
from thinwire import CompositionError, describe, parse, to_text
from thinwire.catalog import KINDS, REGISTRY, Reader, parse_compressor
from thinwire.core import PluginError, PluginWarning
from thinwire.testing import (
    check_compressor,
    check_controller,
    check_memory,
    check_topology,
    composition_texts,
    controller_texts,
    topology_texts,
)
from thinwire_lab.configuration.config import Experiment
from thinwire_lab.tasks import make_task

TEXTS = [
    "stride(step=4)",
    "keeper(stride(step=4))",
    "ef(adapt(stride(step=4), controller=alternate()))",
    "gossip(identity(), pairs())",
]
CONFIG = """
steps = 6
workers = 3
task = { name = "blobs", dimension = 8 }

[methods]
keeper = "keeper(stride(step=4))"
pairs = "gossip(identity(), pairs())"
alternate = "ef(switch(stride(step=4), dense(), controller=alternate(every=2)))"
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return install_outside(tmp_path_factory.mktemp("outside"))


@pytest.fixture
def installed(place):
    with on_path(place):
        yield place


@pytest.mark.parametrize("text", TEXTS)
def test_its_parts_are_read_and_written(installed, text):
    assert to_text(parse(text)) == text


def test_nothing_of_it_is_loaded_before_a_text_asks_for_it(installed):
    parse("ef(topk(density=0.1))")
    assert "thinwire_outside" not in sys.modules
    parse("stride()")
    assert "thinwire_outside.stride" in sys.modules and "thinwire_outside.parts" not in sys.modules


def test_an_object_has_the_text_of_its_entry_point_though_no_text_was_read(installed):
    from thinwire_outside.stride import Stride

    assert "stride" not in REGISTRY.registrations and to_text(Stride(step=3)) == "stride(step=3)"


def test_a_misspelled_name_is_told_what_was_meant(installed):
    with pytest.raises(CompositionError, match="did you mean 'keeper'"):
        parse("keper(dense())")
    with pytest.raises(CompositionError, match=r"did you mean 'pairs'.*topologies are"):
        parse("gossip(identity(), pairz())")


def test_its_parts_are_listed_with_figures(installed):
    (row,) = [row for row in describe.compressor_rows() if row["part"] == "stride()"]
    assert row["saving"] == "2×" and row["contract"] == "δ = 0.5, additive"
    page = describe.to_markdown(describe.compressor_rows())
    assert all(f"| `{name}" in page for name in ("stride", "keeper", "alternate", "pairs"))
    assert {kind: set(KINDS[kind]) & {"stride", "keeper", "alternate", "pairs"} for kind in KINDS} == {
        "compressors": {"stride"}, "aggregators": set(), "memories": {"keeper"}, "topologies": {"pairs"},
        "controllers": {"alternate"},
    }  # fmt: skip


def test_contract_suites_would_run_over_its_parts(installed):
    assert {"stride()", "ef(stride())", "keeper(stride(step=4))"} <= set(composition_texts())
    assert (
        "ef(adapt(topk(density=0.1), controller=alternate(every=2)))" in controller_texts()
        and "pairs()" in topology_texts()
    )


def test_its_compressor_keeps_our_laws(installed):
    check_compressor(parse_compressor("stride()"))


def test_its_memory_keeps_our_laws(installed):
    check_memory(parse("keeper(topk(density=0.1))"))


def test_its_controller_keeps_our_laws(installed):
    check_controller(Reader("alternate(every=2)").part(("controllers",)))


def test_its_topology_keeps_our_laws(installed):
    check_topology(Reader("pairs()").part(("topologies",)))


@pytest.mark.parametrize(
    "text", ["keeper(stride(step=4))", "ef(switch(stride(step=4), dense(), controller=alternate(every=2)))"]
)
def test_attach_takes_its_parts_as_text_and_as_objects(pool, place, text):
    told = pool.run(2, attach_outside, str(place), text, within_s=100.0)
    assert len({digest for digests, _ in told for digest in digests}) == 1
    assert all(text in report for _, reports in told for report in reports)


def test_a_toml_file_runs_with_its_task_and_parts(place, tmp_path):
    (tmp_path / "outside.toml").write_text(CONFIG)
    command = [sys.executable, "-m", "thinwire", "run", "outside.toml", "--out", "runs/outside"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "runs/outside/result.json").read_text())
    assert [run["label"] for run in result["runs"]] == ["keeper", "pairs", "alternate"]
    assert result["task"]["task"] == "blobs"
    assert all(run["curve"]["loss"][-1] < run["curve"]["loss"][0] for run in result["runs"])


def test_a_config_names_where_its_classes_are(installed):
    config = Experiment.from_dict({"task": "blobs", "steps": 1, "methods": {"a": "keeper(stride())"}}, "x")
    make_task("blobs")
    assert config.to_dict()["parts"] == {
        "keeper": "thinwire_outside.parts:Keeper",
        "stride": "thinwire_outside.stride:Stride",
    }
    assert config.to_dict()["tasks"] == {"blobs": "thinwire_outside.blobs:Blobs"}


@pytest.fixture
def broken(tmp_path):
    """A package whose modules are missing, and that wants a name which is taken."""
    points = {"broken": "thinwire_broken.parts:Part", "all_of_it": "thinwire_broken", "topk": "json:JSONDecoder"}
    install(tmp_path, "thinwire-broken", {"thinwire.parts": points, "thinwire.tasks": {"lost": "thinwire_broken:Task"}})
    with on_path(tmp_path):
        yield


def test_a_broken_package_does_not_touch_what_does_not_use_it(broken):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert to_text(parse("ef(topk(density=0.1))")) == "ef(topk(density=0.1))"
        make_task("digits")


def test_a_part_of_a_broken_package_is_an_error_that_names_the_package(broken):
    for _ in range(2):
        with pytest.raises(PluginError, match=r"package thinwire-broken: its entry point broken = .*uninstall"):
            parse("ef(broken())")
    with pytest.raises(PluginError, match="package thinwire-broken: its entry point lost"):
        make_task("lost")


def test_listing_warns_of_a_broken_package_and_goes_on(broken):
    with pytest.warns(PluginWarning, match="package thinwire-broken") as told:
        rows = describe.compressor_rows()
    assert len(told) == 3 and any("topk" in str(one.message) for one in told)
    assert "topk(density=0.01)" in [row["part"] for row in rows]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        describe.compressor_rows()  # told once
