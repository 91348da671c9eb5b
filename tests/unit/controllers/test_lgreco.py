"""L-GreCo over workers in lockstep: what it observes, when it decides, and that nothing is lost when it does."""

import pytest
import torch

from helpers.cases import draw
from thinwire.catalog import parse, to_text
from thinwire.core import CompositionError, TensorSpec, World
from thinwire.drivers.lockstep import lockstep
from thinwire.drivers.meter import Meter
from thinwire.exchange import Exchanger

LAYERS = [
    TensorSpec("loud", (40, 50)),
    TensorSpec("quiet", (40, 50)),
    TensorSpec("flat", (60, 30)),
    TensorSpec("bias", (7,)),
]
SIZE = 3
TEXT = "ef(adapt(topk(density=0.05), controller=lgreco(every=4, start=3, window=2)))"


def gradients(step: int, rank: int):
    tensors = {spec.name: draw("gaussian", spec.shape, seed=100 * step + rank) for spec in LAYERS}
    tensors["loud"] *= 50
    tensors["quiet"] = draw("heavy tails", LAYERS[1].shape, seed=100 * step + rank) * 1e-3
    return tensors


def workers(text: str = TEXT, seed: int = 0):
    rules = {spec.name: parse("dense()" if spec.name == "bias" else text) for spec in LAYERS}
    return [Exchanger(LAYERS, rules, seed=seed) for _ in range(SIZE)]


def train(exchangers, steps, meters=None, spoil=()):
    outs = []
    for step in steps:
        tensors = [gradients(step, rank) for rank in range(SIZE)]
        if step in spoil:
            tensors[1]["loud"][0, 0] = float("nan")
        outs.append(
            lockstep(
                [e.run_step(t, step, World(r, SIZE)) for r, (e, t) in enumerate(zip(exchangers, tensors, strict=True))],
                meters,
            )
        )
    return outs


def test_it_decides_at_its_start_and_every_so_many_exchanges_the_same_on_all_ranks():
    exchangers, meters = workers(), [Meter() for _ in range(SIZE)]
    train(exchangers, range(3), meters)
    assert all(e.plans == [] and set(e.plan.values()) == {0, 9} for e in exchangers)  # the default; biases have no menu
    assert "plan" not in meters[0].sum_by("kind")
    train(exchangers, range(3, 8), meters)
    assert {3} <= {step for step, _ in exchangers[0].plans} <= {3, 7}  # where nothing changes there is no new plan
    assert all(e.plans == exchangers[0].plans for e in exchangers)
    table = 3 * 100 * 8
    assert meters[1].sum_by("kind")["plan"].payload_bytes == 2 * table  # rank 0 alone hands its plan on
    assert meters[0].sum_by("kind")["plan"].payload_bytes == 2 * (table + 3 * 4)


def test_it_sends_less_than_the_reference_and_loses_no_more():
    plain, chosen = [Meter() for _ in range(SIZE)], [Meter() for _ in range(SIZE)]
    train(workers("ef(topk(density=0.05))"), range(3, 30), plain)
    train(workers(), range(3, 30), chosen)
    kinds = chosen[0].sum_by("kind")
    assert plain[0].total().sent_bytes > chosen[0].total().sent_bytes - kinds["plan"].sent_bytes


def test_the_loud_layer_gets_more_and_the_quiet_one_less():
    exchangers = workers()
    train(exchangers, range(4))
    plan = exchangers[0].plan
    assert plan["quiet"] == 0 and plan["loud"] >= 9


@pytest.mark.parametrize(
    "text", [TEXT, "ef(adapt(powersgd(rank=2), topk(density=0.05), controller=lgreco(every=2, start=1, window=1)))"]
)
def test_nothing_is_lost_when_the_plan_changes(text):
    exchangers = workers(text)
    outs = train(exchangers, range(12))
    assert exchangers[0].plans
    for name in ("loud", "quiet", "flat"):
        given = sum(gradients(step, rank)[name].double() for step in range(12) for rank in range(SIZE)) / SIZE
        arrived = sum(out[0][name].double() for out in outs)
        kept = sum(e.states[name].residual.double() for e in exchangers) / SIZE
        torch.testing.assert_close(arrived + kept, given, rtol=1e-4, atol=1e-4 * float(given.abs().max()))


def test_only_the_window_before_a_decision_counts():
    one, other = workers(), workers()
    train(one, range(3))
    train(other, [10, 1, 2])  # another first step, and the same window
    train(one, [3])
    train(other, [3])
    pure = 'ef(adapt(topk(density=0.05), controller=lgreco(every=4, start=3, window=2, observed="gradient")))'
    third, fourth = workers(pure), workers(pure)
    train(third, [0, 1, 2, 3])
    train(fourth, [10, 1, 2, 3])
    assert third[0].plan == fourth[0].plan
    assert [t.abs().sum() for t in one[0].controller_state.sums] == [0, 0, 0]  # begun anew


def test_bad_steps_are_neither_looked_at_nor_counted():
    exchangers, without = workers(), workers()
    train(exchangers, range(5), spoil=(1, 2))
    train(without, (0, 3, 4))
    assert exchangers[0].plans == [] and all(e.plan == exchangers[0].plan for e in exchangers)
    assert exchangers[0].controller_state.num_exchanges == 3
    for one, other in zip(exchangers, without, strict=True):
        assert torch.equal(one.controller_state.counts, other.controller_state.counts)
        assert all(map(torch.equal, one.controller_state.sums, other.controller_state.sums))


@pytest.mark.parametrize("cut", [1, 3, 5])
def test_stored_and_resumed_it_makes_the_same_plans_bit_for_bit(cut):
    whole = workers()
    train(whole, range(9))
    first = workers()
    train(first, range(cut))
    states = [e.state_dict() for e in first]
    second = workers()
    for exchanger, state in zip(second, states, strict=True):
        exchanger.load_state_dict(state)
    train(second, range(cut, 9))
    for a, b in zip(whole, second, strict=True):
        assert a.plans == b.plans and a.plan == b.plan
        assert all(torch.equal(a.states[n].residual, b.states[n].residual) for n in ("loud", "quiet", "flat"))
        assert all(map(torch.equal, a.controller_state.sums, b.controller_state.sums))


@pytest.mark.parametrize(
    "settings",
    [
        'errors_from="rank0"',
        'error="squared"',
        'solver="lagrangian"',
        "exact_errors=true",
        'observed="gradient"',
        "alpha=0.7",
        "alpha=2.0",
    ],
)
def test_every_setting_gives_one_plan_to_all(settings):
    exchangers = workers(
        f"ef(adapt(topk(density=0.05), qsgd(bits=4), controller=lgreco(every=3, start=2, {settings})))"
    )
    train(exchangers, range(6))
    assert exchangers[0].plans and all(e.plans == exchangers[0].plans for e in exchangers)


def test_statistics_of_one_rank_are_the_first_ones():
    exchangers = workers('ef(adapt(topk(density=0.05), controller=lgreco(every=4, start=3, errors_from="rank0")))')
    alone = Exchanger(LAYERS, exchangers[0].aggregators)
    meters = [Meter() for _ in range(SIZE)]
    train(exchangers, range(4), meters)
    for step in range(4):
        lockstep([alone.run_step(gradients(step, 0), step, World(0, 1))])
    assert exchangers[0].plan == alone.plan
    assert meters[1].sum_by("kind").get("plan") is None or meters[1].sum_by("kind")["plan"].payload_bytes == 0


def test_a_mixture_takes_entries_of_several_families():
    text = "ef(adapt(topk(density=0.05), qsgd(bits=4), powersgd(rank=2), controller=lgreco(every=4, start=3)))"
    layers = [TensorSpec("low", (64, 64)), TensorSpec("sparse", (64, 64)), TensorSpec("even", (64, 64))]
    exchanger = Exchanger(layers, parse(text))
    for step in range(4):
        left, right = draw("gaussian", (64, 2), seed=step), draw("gaussian", (2, 64), seed=90)
        tensors = {
            "low": left @ right * 5,
            "sparse": draw("one-hot", (64, 64), seed=1),
            "even": draw("constant", (64, 64), seed=2),
        }
        lockstep([exchanger.run_step(tensors, step, World(0, 1))])
    options = {spec.name: to_text(menu.options[exchanger.plan[spec.name]]) for spec, menu in exchanger.menus}
    assert options["low"].startswith("powersgd") and options["sparse"].startswith("topk")
    assert len({text.split("(")[0] for text in options.values()}) >= 2


@pytest.mark.parametrize(
    "text, words",
    [
        ("lgreco(every=0)", "every"), ("lgreco(alpha=0.0)", "alpha"), ('lgreco(solver="best")', "exact, lagrangian"),
        ('lgreco(errors_from="few")', "all, rank0"), ('lgreco(error="max")', "norm, squared"), ("lgreco(window=0)", "window"),
    ],
)  # fmt: skip
def test_settings_that_mean_nothing_are_refused_by_name(text, words):
    with pytest.raises(CompositionError, match=words):
        parse(f"ef(adapt(topk(density=0.1), controller={text}))")
