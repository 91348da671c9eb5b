"""Ladders, and the memory that entries of one family share."""

import pytest
import torch

from helpers.cases import draw
from thinwire.aggregators.ladder import knob_of, ladder
from thinwire.catalog import parse, to_text
from thinwire.controllers import Fixed
from thinwire.core import CompositionError, Context, IncompatibleParts, Key, TensorSpec, World, loopback
from thinwire.exchange import Exchanger

SPEC = TensorSpec("w", (32, 40))


@pytest.mark.parametrize(
    "text, first, last, count",
    [
        ("topk(density=0.01)", "topk(density=0.001)", "topk(density=0.1)", 100),
        ("topk(density=0.3)", "topk(density=0.03)", "topk(density=0.99)", 33),  # no density above one
        ("qsgd(bits=4)", "qsgd(bits=2)", "qsgd(bits=8)", 7),
        ("uniform(bits=8)", "uniform(bits=4)", "uniform()", 5),  # it takes no more than 8
        ("powersgd(rank=4)", "powersgd(rank=2)", "powersgd(rank=8)", 7),
        ("powersgd(rank=1)", "powersgd(rank=1)", "powersgd(rank=2)", 2),
        ("two_hop(topk(density=0.01))", "two_hop(topk(density=0.001))", "two_hop(topk(density=0.1))", 100),
        ("dense()", "dense()", "dense()", 1),
    ],
)
def test_a_ladder_turns_the_knob_as_published(text, first, last, count):
    rungs, own = ladder(parse(text))
    assert (to_text(rungs[0]), to_text(rungs[-1]), len(rungs)) == (first, last, count)
    assert rungs[own] == parse(text)


def test_multiples_of_ones_own():
    rungs, own = ladder(parse("powersgd(rank=32)"), 0.25, 4)
    assert [rungs[0].rank, rungs[own].rank, rungs[-1].rank] == [8, 32, 128]


def test_a_count_has_no_knob_and_a_second_stage_is_not_turned():
    assert knob_of(parse("topk(k=3)")) is None
    found = knob_of(parse("topk(density=0.1, values=qsgd(bits=4))"))
    assert found is not None and found[0].name == "density"


@pytest.mark.parametrize(
    "text, words",
    [
        ("adapt(topk(density=0.01))", "who chooses"),
        ("adapt(by=lgreco())", "no family"),
        ("adapt(sign(), by=lgreco())", "no density, bits or rank"),
        ("adapt(topk(density=0.01), least=2.0, by=lgreco())", "between least and most"),
        ("adapt(topk(density=0.01), most=-1.0, by=lgreco())", "most is a multiple"),
        ("adapt(topk(density=0.01), by=ring())", "a controller is needed here: fixed, lgreco"),
        ("lgreco()", "chooses, but from what"),
        ("ef(lgreco())", "an aggregator or a compressor"),
    ],
)
def test_what_cannot_be_is_refused_by_name(text, words):
    with pytest.raises(CompositionError, match=words):
        parse(text)


def test_two_menus_for_one_layer_are_refused():
    rule = parse("switch(switch(sign(), dense()), dense())")
    with pytest.raises(IncompatibleParts, match="w: a plan gives a layer one entry"):
        Exchanger([SPEC], rule)


def test_entries_of_a_family_share_one_memory():
    state = parse("adapt(powersgd(rank=4, min_saving=1.0), topk(density=0.1), by=lgreco())").init(SPEC, Key(1))
    assert len(state.entries) == 2 and state.entries[1] == ()
    assert state.entries[0].right.shape == (8, 40)  # of the largest rank, not of all


def test_a_smaller_rank_uses_the_first_factors_and_a_larger_one_finds_the_others_again():
    rule = parse("adapt(powersgd(rank=2, min_saving=1.0), by=fixed())")
    state = rule.init(SPEC, Key(1))
    ranks = {entry.rank: at for at, entry in enumerate(rule.menu)}

    def step(state, rank):
        ctx = Context(0, World(0, 1), plan={"w": ranks[rank]})
        return loopback(rule.reduce(draw("gaussian", SPEC.shape, seed=rank), SPEC, state, ctx)).state

    four = step(state, 4).entries[0].right
    two = step(step(state, 4), 2).entries[0].right
    assert torch.equal(two[2:], four[2:]) and not torch.equal(two[:2], four[:2])
    alone = parse("powersgd(rank=2, min_saving=1.0)")
    out = loopback(
        alone.reduce(draw("gaussian", SPEC.shape, seed=2), SPEC, step(state, 4).entries[0], Context(0, World(0, 1)))
    )
    assert torch.equal(out.state.right[:2], two[:2])


def test_each_entry_gives_what_it_gives_alone():
    rule = parse("adapt(topk(density=0.1), qsgd(bits=3), by=fixed())")
    tensor = draw("gaussian", SPEC.shape, seed=3)
    for at, entry in enumerate(rule.menu[::13]):
        ctx = Context(3, World(0, 1), 5, plan={"w": 13 * at})
        mine = loopback(rule.reduce(tensor, SPEC, rule.init(SPEC, Key(0)), ctx))
        alone = loopback(entry.reduce(tensor, SPEC, entry.init(SPEC, Key(0)), ctx))
        assert torch.equal(mine.value, alone.value) and torch.equal(mine.sent, alone.sent)


def test_layers_may_have_choosers_of_their_own():
    layers = [TensorSpec("a", (20, 20)), TensorSpec("b", (20, 20)), TensorSpec("c", (5,))]
    rules = {
        "a": parse("ef(adapt(topk(density=0.1), by=lgreco(start=1, every=1)))"),
        "b": parse("ef(switch(sign(), dense(), by=fixed(default=1)))"),
        "c": parse("dense()"),
    }
    exchanger = Exchanger(layers, rules)
    assert exchanger.plan == {"a": 9, "b": 1, "c": 0}
    for step in range(3):
        tensors = {s.name: draw("gaussian", s.shape, seed=step) for s in layers}
        loopback(exchanger.round(tensors, step, World(0, 1)))
    assert exchanger.plan["b"] == 1
    state = exchanger.state_dict()
    again = Exchanger(layers, rules)
    again.load_state_dict(state)
    assert again.plan == exchanger.plan and again.plans == exchanger.plans


def test_who_is_told_decides_instead():
    exchanger = Exchanger([SPEC], parse("ef(adapt(topk(density=0.1), by=lgreco()))"), Fixed(default=5))
    assert exchanger.plan == {"w": 5}
    assert exchanger.memory["w"].residual.nbytes == 4 * SPEC.numel
