"""The five files that CONTRIBUTING.md shows: registered as it says, they keep the laws of the contract suites."""

import inspect
import re
import sys
import types
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from contracts import test_transports as transport_laws
from helpers.cases import draw
from helpers.laboratory import run_here
from thinwire import CompositionError, Exchanger, Meter, TensorSpec, World, describe, lockstep, parse
from thinwire.catalog import REGISTRY, Registration, parse_compressor, to_text
from thinwire.controllers import Fixed
from thinwire.testing import (
    AGGREGATOR_LAWS,
    COMPRESSOR_LAWS,
    CONTROLLER_LAWS,
    DECODER_LAWS,
    MEMORY_LAWS,
    composition_texts,
    controller_texts,
    keep_registry,
    reduce_all,
)
from thinwire_lab import published
from thinwire_lab.sources import load_run_plan

TEXT = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
FILES = dict(re.findall(r"```python\n# src/(\S+)\.py\n(.*?)```", TEXT, re.DOTALL))
REGISTRATIONS = re.findall(r'`Registration\("(\w+)", (\w+)\.(\w+), "(\w+)"(?:, examples=\("(.*?)",\))?\),`', TEXT)


def load_block(path):
    """The module that a block would be if its file existed, so that it can use relative imports."""
    name = path.replace("/", ".")
    module = types.ModuleType(name)
    module.__package__ = name.rpartition(".")[0]
    sys.modules[name] = module  # dataclasses and type hints look for it there
    exec(compile(FILES[path], f"CONTRIBUTING.md: {path}.py", "exec", dont_inherit=True), module.__dict__)
    return module


EvenOdd = load_block("thinwire/compressors/even_odd").EvenOdd
Int16Sum = load_block("thinwire/aggregators/int16_sum").Int16Sum
LargestNorm = load_block("thinwire/controllers/largest_norm").LargestNorm
Delayed = load_block("thinwire/drivers/delayed").Delayed
density_sweep = load_block("thinwire_lab/published/density_sweep")

CONTROLLED = "ef(switch(topk(density=0.1), dense(), controller=largest_norm(every=2)))"


@pytest.fixture(autouse=True)
def registered():
    """The catalog with the lines that CONTRIBUTING.md adds."""
    classes = {"EvenOdd": EvenOdd, "Int16Sum": Int16Sum, "LargestNorm": LargestNorm}
    with keep_registry():
        for name, _, cls, kind, examples in REGISTRATIONS:
            REGISTRY.add(Registration(name, classes[cls], kind, examples=(examples,) if examples else ()))
        yield


def test_the_guide_has_five_files_and_registers_three_parts():
    assert list(FILES) == [
        "thinwire/compressors/even_odd", "thinwire/aggregators/int16_sum", "thinwire/controllers/largest_norm",
        "thinwire/drivers/delayed", "thinwire_lab/published/density_sweep",
    ]  # fmt: skip
    assert REGISTRATIONS == [
        ("even_odd", "compressors", "EvenOdd", "compressor", ""),
        ("int16_sum", "aggregators", "Int16Sum", "aggregator", ""),
        ("largest_norm", "controllers", "LargestNorm", "controller", "every=2"),
    ]


def test_files_and_tables_that_the_guide_names_exist():
    root = Path(__file__).parents[2]
    for path in re.findall(r"(?:tests|tools|docs)/[\w/]+\.(?:py|md|txt)", TEXT):
        assert "NAME" in path or (root / path).is_file(), path
    for table, path in re.findall(r"`([A-Z_]+)` (?:in|of)\s+`([\w/]+\.py)`", TEXT):
        found = next(place / path for place in (root, root / "src", root / "src/thinwire") if (place / path).is_file())
        assert re.search(rf"^{table}\b.*=", found.read_text(), re.MULTILINE), (table, path)


@pytest.mark.parametrize("law", [*COMPRESSOR_LAWS, *DECODER_LAWS], ids=str)
def test_the_compressor_keeps_every_law_of_compressors(law):
    law(parse_compressor("even_odd()"))


@pytest.mark.parametrize("text", ("even_odd()", "ef(even_odd())", "int16_sum()", "ef(int16_sum())"))
@pytest.mark.parametrize("law", AGGREGATOR_LAWS, ids=str)
def test_both_parts_keep_every_law_of_aggregators(law, text):
    law(parse(text))


@pytest.mark.parametrize("text", ("ef(even_odd())", "ef(int16_sum())"))
@pytest.mark.parametrize("law", MEMORY_LAWS, ids=str)
def test_error_feedback_loses_nothing_with_either(law, text):
    law(parse(text))


def test_the_suites_run_over_registered_parts():
    assert {"even_odd()", "ef(even_odd())", "int16_sum()", "ef(int16_sum())"} <= set(composition_texts())
    assert CONTROLLED in controller_texts()
    for text in (*composition_texts(), *controller_texts()):
        assert parse(to_text(parse(text))) == parse(text)


def test_the_docstring_of_a_new_compressor_becomes_a_row():
    (row,) = [row for row in describe.compressor_rows() if row["part"] == "even_odd()"]
    assert row["saving"] == "2×"
    assert row["contract"] == "δ = 0.5, additive"


def test_the_compressor_sends_half_and_error_feedback_keeps_the_rest():
    world, layer, meters = 4, TensorSpec("w", (100,)), [Meter() for _ in range(4)]
    exchangers = [Exchanger([layer], parse("ef(even_odd())")) for _ in range(world)]
    sum_of_means = sum_of_averages = torch.zeros(100)
    for step in range(20):
        tensors = [draw("gaussian", (100,), seed=10 * step + rank) for rank in range(world)]
        programs = [
            e.run_step({"w": t}, step, World(r, world))
            for r, (e, t) in enumerate(zip(exchangers, tensors, strict=True))
        ]
        outs = lockstep(programs, meters)
        assert all(torch.equal(out["w"], outs[0]["w"]) for out in outs)
        sum_of_means, sum_of_averages = sum_of_means + sum(tensors) / world, sum_of_averages + outs[0]["w"]
    residual = sum(e.states["w"].residual for e in exchangers) / world
    torch.testing.assert_close(sum_of_averages + residual, sum_of_means, rtol=1e-4, atol=1e-5)
    assert meters[0].sum_by("layer")["w"].payload_bytes == 20 * 50 * 4


def test_the_aggregator_sends_sixteen_bits_a_coordinate():
    meters, tensors = [Meter() for _ in range(3)], [draw("gaussian", (500,), seed=rank) for rank in range(3)]
    outs = reduce_all(parse("int16_sum()"), tensors, meters=meters)
    assert meters[0].sum_by("kind")["levels"].payload_bytes == 2 * 500
    assert meters[0].sum_by("kind")["scale"].payload_bytes == 4
    torch.testing.assert_close(outs[0].value, sum(tensors) / 3, rtol=0, atol=1e-3)


@pytest.mark.parametrize("law", CONTROLLER_LAWS, ids=str)
def test_the_controller_keeps_every_law_of_controllers(law):
    law(parse(CONTROLLED))


LAYERS = [TensorSpec("small", (30,)), TensorSpec("large", (20,))]


def make_exchangers(controller):
    return [Exchanger(LAYERS, parse("ef(switch(topk(density=0.1), dense()))"), controller) for _ in range(3)]


def train(exchangers, steps, meters=None):
    for step in steps:
        tensors = [{s.name: draw("gaussian", s.shape, seed=10 * step + r) for s in LAYERS} for r in range(3)]
        tensors[1]["large"] *= 100  # only rank 1 sees it
        programs = [e.run_step(t, step, World(r, 3)) for r, (e, t) in enumerate(zip(exchangers, tensors, strict=True))]
        outs = lockstep(programs, meters)
    return outs


def test_all_ranks_follow_the_controller_to_the_same_plan():
    exchangers, meters = make_exchangers(LargestNorm(every=10)), [Meter() for _ in range(3)]
    train(exchangers, range(10), meters=meters)
    assert all(e.plan == {"small": 0, "large": 0} for e in exchangers)
    train(exchangers, range(10, 12), meters=meters)
    assert all(e.plan == {"small": 0, "large": 1} for e in exchangers)
    assert meters[0].sum_by("kind")["control"].payload_bytes == 16  # one request, two numbers of 8 bytes


def test_the_controller_leaves_a_smaller_residual_than_a_fixed_plan():
    """The residual of the large layer is sent once that layer has the dense option."""
    controlled, fixed = make_exchangers(LargestNorm(every=5)), make_exchangers(Fixed())
    train(controlled, range(8))
    train(fixed, range(8))
    assert controlled[1].states["large"].residual.norm() < 0.01 * fixed[1].states["large"].residual.norm()


@contextmanager
def open_delayed(handle, sender="w"):
    with transport_laws.over_sockets(handle, sender) as connection:
        yield Delayed(connection, latency_s=0.001)


TRANSPORT_LAWS = {
    name: law
    for name, law in inspect.getmembers(transport_laws, inspect.isfunction)
    if name.startswith("test_") and "opened" in inspect.signature(law).parameters
}


@pytest.mark.parametrize("law", TRANSPORT_LAWS)
def test_the_transport_keeps_every_law_of_transports(law, request):
    function, arguments = TRANSPORT_LAWS[law], {"opened": open_delayed}
    if "caplog" in inspect.signature(function).parameters:
        arguments["caplog"] = request.getfixturevalue("caplog")
    if "used" in inspect.signature(function).parameters:
        arguments["used"] = True
    function(**arguments)


def test_the_transport_refuses_a_negative_latency():
    with pytest.raises(CompositionError, match="latency_s must not be negative, got -1"):
        Delayed(None, -1)


def test_the_experiment_is_found_by_the_name_that_the_guide_lists(monkeypatch):
    ((name, summary),) = re.findall(r'`"([\w-]+)": "(.*?)",`', TEXT)
    monkeypatch.setitem(published.SUMMARIES, name, summary)
    plan, config = load_run_plan(name)
    assert plan.name == name == config["named"] and plan.runs == 3


def test_the_experiment_runs_and_judges_its_claim():
    result = run_here(density_sweep.build_experiment(), density_sweep.summarize)
    (table,) = result["tables"]
    ((_, verdict, figures),) = table["rows"]
    accuracy = {run["label"]: run["final"]["accuracy"] for run in result["runs"]}
    assert list(accuracy) == ["dense", "density 0.01", "density 0.1"] and figures.startswith("dense 0.")
    assert verdict == ("yes" if min(accuracy.values()) > accuracy["dense"] - 0.01 else "no")
