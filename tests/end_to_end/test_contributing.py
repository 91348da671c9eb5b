"""The three files that CONTRIBUTING.md shows: complete, listed as it says, and kept to the laws of the catalog."""

import re
import sys
import types
from pathlib import Path

import pytest
import torch

from helpers.cases import draw
from thinwire import Exchanger, Meter, TensorSpec, World, describe, lockstep, parse
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

TEXT = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
FILES = dict(re.findall(r"```python\n# src/(thinwire/\S+)\.py\n(.*?)```", TEXT, re.DOTALL))
LISTED = re.findall(r'`Registration\("(\w+)", (\w+)\.(\w+), "(\w+)"(?:, examples=\("(.*?)",\))?\),`', TEXT)


def shown(path):
    """The module that a block would be if its file were there, so that it may say `from ..core import ...`."""
    name = path.replace("/", ".")
    module = types.ModuleType(name)
    module.__package__ = name.rpartition(".")[0]
    sys.modules[name] = module  # dataclasses and type hints look for it there
    exec(compile(FILES[path], f"CONTRIBUTING.md: {path}.py", "exec", dont_inherit=True), module.__dict__)
    return module


EverySecond = shown("thinwire/compressors/every_second").EverySecond
SharedScale = shown("thinwire/aggregators/shared_scale").SharedScale
Loudest = shown("thinwire/controllers/loudest").Loudest


STEERED = "ef(switch(topk(density=0.1), dense(), controller=loudest(every=2)))"


@pytest.fixture(autouse=True)
def listed():
    """The catalog with the lines that CONTRIBUTING.md adds."""
    shown_parts = {"EverySecond": EverySecond, "SharedScale": SharedScale, "Loudest": Loudest}
    with keep_registry():
        for name, _, part, kind, examples in LISTED:
            REGISTRY.add(Registration(name, shown_parts[part], kind, examples=(examples,) if examples else ()))
        yield


def test_the_guide_shows_three_files_and_lists_them():
    assert list(FILES) == [
        "thinwire/compressors/every_second", "thinwire/aggregators/shared_scale", "thinwire/controllers/loudest"
    ]  # fmt: skip
    assert LISTED == [
        ("everysecond", "compressors", "EverySecond", "compressor", ""),
        ("shared", "aggregators", "SharedScale", "aggregator", ""),
        ("loudest", "controllers", "Loudest", "controller", "every=2"),
    ]


@pytest.mark.parametrize("law", [*COMPRESSOR_LAWS, *DECODER_LAWS], ids=str)
def test_the_compressor_keeps_every_law_of_compressors(law):
    law(parse_compressor("everysecond()"))


@pytest.mark.parametrize("text", ("everysecond()", "ef(everysecond())", "shared()", "ef(shared())"))
@pytest.mark.parametrize("law", AGGREGATOR_LAWS, ids=str)
def test_both_parts_keep_every_law_of_aggregators(law, text):
    law(parse(text))


@pytest.mark.parametrize("text", ("ef(everysecond())", "ef(shared())"))
@pytest.mark.parametrize("law", MEMORY_LAWS, ids=str)
def test_error_feedback_loses_nothing_with_either(law, text):
    law(parse(text))


def test_the_suites_run_over_what_is_listed():
    assert {"everysecond()", "ef(everysecond())", "shared()", "ef(shared())"} <= set(composition_texts())
    assert STEERED in controller_texts()
    for text in (*composition_texts(), *controller_texts()):
        assert parse(to_text(parse(text))) == parse(text)


def test_the_docstring_of_a_new_compressor_becomes_a_row():
    (row,) = [row for row in describe.compressor_rows() if row["part"] == "everysecond()"]
    assert row["saving"] == "2×"
    assert row["contract"] == "δ = 0.5, additive"


def test_the_compressor_in_lockstep_sends_half_and_with_feedback_loses_nothing():
    world, layer, meters = 4, TensorSpec("w", (100,)), [Meter() for _ in range(4)]
    exchangers = [Exchanger([layer], parse("ef(everysecond())")) for _ in range(world)]
    given = agreed = torch.zeros(100)
    for step in range(20):
        tensors = [draw("gaussian", (100,), seed=10 * step + rank) for rank in range(world)]
        programs = [
            e.run_step({"w": t}, step, World(r, world))
            for r, (e, t) in enumerate(zip(exchangers, tensors, strict=True))
        ]
        outs = lockstep(programs, meters)
        assert all(torch.equal(out["w"], outs[0]["w"]) for out in outs)
        given, agreed = given + sum(tensors) / world, agreed + outs[0]["w"]
    left = sum(e.states["w"].residual for e in exchangers) / world
    torch.testing.assert_close(agreed + left, given, rtol=1e-4, atol=1e-5)
    assert meters[0].sum_by("layer")["w"].payload_bytes == 20 * 50 * 4


def test_the_aggregator_sends_sixteen_bits_a_coordinate():
    meters, tensors = [Meter() for _ in range(3)], [draw("gaussian", (500,), seed=rank) for rank in range(3)]
    outs = reduce_all(parse("shared()"), tensors, meters=meters)
    assert meters[0].sum_by("kind")["levels"].payload_bytes == 2 * 500
    assert meters[0].sum_by("kind")["scale"].payload_bytes == 4
    torch.testing.assert_close(outs[0].value, sum(tensors) / 3, rtol=0, atol=1e-3)


@pytest.mark.parametrize("law", CONTROLLER_LAWS, ids=str)
def test_the_controller_keeps_every_law_of_controllers(law):
    law(parse(STEERED))


LAYERS = [TensorSpec("quiet", (30,)), TensorSpec("loud", (20,))]


def workers(controller):
    return [Exchanger(LAYERS, parse("ef(switch(topk(density=0.1), dense()))"), controller) for _ in range(3)]


def train(exchangers, steps, meters=None):
    for step in steps:
        tensors = [{s.name: draw("gaussian", s.shape, seed=10 * step + r) for s in LAYERS} for r in range(3)]
        tensors[1]["loud"] *= 100  # only rank 1 can hear it
        programs = [e.run_step(t, step, World(r, 3)) for r, (e, t) in enumerate(zip(exchangers, tensors, strict=True))]
        outs = lockstep(programs, meters)
    return outs


def test_all_ranks_follow_the_controller_to_the_same_plan():
    exchangers, meters = workers(Loudest(every=10)), [Meter() for _ in range(3)]
    train(exchangers, range(10), meters=meters)
    assert all(e.plan == {"quiet": 0, "loud": 0} for e in exchangers)
    train(exchangers, range(10, 12), meters=meters)
    assert all(e.plan == {"quiet": 0, "loud": 1} for e in exchangers)
    assert meters[0].sum_by("kind")["control"].payload_bytes == 16  # asked once, two numbers of 8 bytes


def test_a_controller_that_hears_everybody_beats_a_fixed_plan_for_the_loud_layer():
    """What was kept back of the loud layer is sent once it has the better entry."""
    steered, fixed = workers(Loudest(every=5)), workers(Fixed())
    train(steered, range(8))
    train(fixed, range(8))
    assert steered[1].states["loud"].residual.norm() < 0.01 * fixed[1].states["loud"].residual.norm()
