"""`adapt`: the variants it makes, and the state that variants of one method share."""

import pytest
import torch

from helpers.cases import draw
from thinwire.aggregators.options import find_tunable, options_of
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
def test_options_vary_the_tunable_setting_as_published(text, first, last, count):
    options, default = options_of(parse(text))
    assert (to_text(options[0]), to_text(options[-1]), len(options)) == (first, last, count)
    assert options[default] == parse(text)


def test_a_range_of_factors_of_the_given_value():
    options, default = options_of(parse("powersgd(rank=32)"), 0.25, 4)
    assert [options[0].rank, options[default].rank, options[-1].rank] == [8, 32, 128]


def test_a_count_is_not_tunable_and_a_second_stage_is_not_varied():
    assert find_tunable(parse("topk(k=3)")) is None
    found = find_tunable(parse("topk(density=0.1, values=qsgd(bits=4))"))
    assert found is not None and found[0].name == "density"


@pytest.mark.parametrize(
    "text, words",
    [
        ("adapt(topk(density=0.01))", "no controller is given"),
        ("adapt(controller=lgreco())", "no method is given"),
        ("adapt(sign(), controller=lgreco())", "no density, bits or rank"),
        ("adapt(topk(density=0.01), min_factor=2.0, controller=lgreco())", "min_factor must be at most 1"),
        ("adapt(topk(density=0.01), max_factor=-1.0, controller=lgreco())", "max_factor multiplies the given density"),
        ("adapt(topk(density=0.01), controller=ring())", "is a topology; expected a controller: fixed, lgreco"),
        ("lgreco()", "is a controller; expected an aggregator"),
        ("ef(lgreco())", "is a controller; expected an aggregator or a compressor"),
    ],
)
def test_impossible_settings_are_refused_by_name(text, words):
    with pytest.raises(CompositionError, match=words):
        parse(text)


def test_two_menus_for_one_layer_are_refused():
    rule = parse("switch(switch(sign(), dense()), dense())")
    with pytest.raises(IncompatibleParts, match="w: a plan gives a layer one option"):
        Exchanger([SPEC], rule)


def test_variants_of_a_method_share_one_state():
    state = parse("adapt(powersgd(rank=4, min_saving=1.0), topk(density=0.1), controller=lgreco())").init(SPEC, Key(1))
    assert len(state.states) == 2 and state.states[1] == ()
    assert state.states[0].right.shape == (8, 40)  # of the largest rank, not of all


def test_a_smaller_rank_uses_the_first_factors_and_a_larger_one_finds_the_others_again():
    rule = parse("adapt(powersgd(rank=2, min_saving=1.0), controller=fixed())")
    state = rule.init(SPEC, Key(1))
    ranks = {option.rank: at for at, option in enumerate(rule.menu.options)}

    def step(state, rank):
        ctx = Context(0, World(0, 1), plan={"w": ranks[rank]})
        return loopback(rule.reduce(draw("gaussian", SPEC.shape, seed=rank), SPEC, state, ctx)).state

    four = step(state, 4).states[0].right
    two = step(step(state, 4), 2).states[0].right
    assert torch.equal(two[2:], four[2:]) and not torch.equal(two[:2], four[:2])
    alone = parse("powersgd(rank=2, min_saving=1.0)")
    out = loopback(
        alone.reduce(draw("gaussian", SPEC.shape, seed=2), SPEC, step(state, 4).states[0], Context(0, World(0, 1)))
    )
    assert torch.equal(out.state.right[:2], two[:2])


def test_each_option_gives_what_it_gives_alone():
    rule = parse("adapt(topk(density=0.1), qsgd(bits=3), controller=fixed())")
    tensor = draw("gaussian", SPEC.shape, seed=3)
    for at, option in enumerate(rule.menu.options[::13]):
        ctx = Context(3, World(0, 1), 5, plan={"w": 13 * at})
        mine = loopback(rule.reduce(tensor, SPEC, rule.init(SPEC, Key(0)), ctx))
        alone = loopback(option.reduce(tensor, SPEC, option.init(SPEC, Key(0)), ctx))
        assert torch.equal(mine.value, alone.value) and torch.equal(mine.sent, alone.sent)


def test_layers_may_have_controllers_of_their_own():
    layers = [TensorSpec("a", (20, 20)), TensorSpec("b", (20, 20)), TensorSpec("c", (5,))]
    rules = {
        "a": parse("ef(adapt(topk(density=0.1), controller=lgreco(start=1, every=1)))"),
        "b": parse("ef(switch(sign(), dense(), controller=fixed(default=1)))"),
        "c": parse("dense()"),
    }
    exchanger = Exchanger(layers, rules)
    assert exchanger.plan == {"a": 9, "b": 1, "c": 0}
    for step in range(3):
        tensors = {s.name: draw("gaussian", s.shape, seed=step) for s in layers}
        loopback(exchanger.run_step(tensors, step, World(0, 1)))
    assert exchanger.plan["b"] == 1
    state = exchanger.state_dict()
    again = Exchanger(layers, rules)
    again.load_state_dict(state)
    assert again.plan == exchanger.plan and again.plans == exchanger.plans


def test_a_controller_given_to_the_exchanger_decides_instead():
    exchanger = Exchanger([SPEC], parse("ef(adapt(topk(density=0.1), controller=lgreco()))"), Fixed(default=5))
    assert exchanger.plan == {"w": 5}
    assert exchanger.states["w"].residual.nbytes == 4 * SPEC.numel
