"""Laws that everybody keeps who chooses for layers: one plan on all ranks, out of what all have in common."""

import math
import random
import time

import pytest

from contracts.test_aggregators import as_bytes_and_back, assert_same
from drawn import CONTROLLER_TEXTS, draw
from thinwire import Exchanger, TensorSpec, World, lockstep, parse
from thinwire.controllers.several import menu_part

EVERY = pytest.mark.parametrize("text", CONTROLLER_TEXTS)
LAYERS = [TensorSpec("a", (8, 6)), TensorSpec("b.w", (40,)), TensorSpec("c", (3, 4, 2)), TensorSpec("d", (1,))]


def workers(text, layers=LAYERS, ranks=3):
    return [Exchanger(layers, parse(text), seed=7) for _ in range(ranks)]


def tensors_of(step, rank, layers=LAYERS):
    """Large ones and small ones, other on each rank; the first layer fades, the last is silent now and then."""
    sizes = {spec.name: 10.0 ** (rank - at) for at, spec in enumerate(layers)}
    tensors = {s.name: draw("gaussian", s.shape, seed=100 * step + rank) * sizes[s.name] for s in layers}
    tensors[layers[0].name] *= 0.5**step
    if step % 3 == 0:
        tensors[layers[-1].name].zero_()
    return tensors


def train(everybody, steps, layers=LAYERS, tensors=tensors_of, run=lockstep):
    """Every rank's plan of each step, and the last averages."""
    plans, outs = [], []
    for step in steps:
        size, lr = len(everybody), 0.1 * 0.3 ** (step // 4)
        outs = run([e.round(tensors(step, r, layers), step, World(r, size), lr) for r, e in enumerate(everybody)])
        plans.append([dict(e.plan) for e in everybody])
    return plans, outs


@EVERY
@pytest.mark.parametrize("ranks", (1, 2, 5))
def test_all_ranks_have_the_same_plan_whatever_they_send(text, ranks):
    everybody = workers(text, ranks=ranks)
    plans, _ = train(everybody, range(9))
    assert all(plan == together[0] for together in plans for plan in together)
    assert all(e.plans == everybody[0].plans for e in everybody)


@EVERY
def test_every_layer_has_an_entry_of_its_menu(text):
    entries = len(menu_part(parse(text), "a").offers.entries)
    for plan, *_ in train(workers(text), range(9))[0]:
        assert plan.keys() == {spec.name for spec in LAYERS}
        assert all(0 <= entry < entries for entry in plan.values())


@EVERY
def test_two_equal_runs_choose_alike(text):
    assert train(workers(text), range(9))[0] == train(workers(text), range(9))[0]


@EVERY
def test_a_bad_step_leaves_no_trace(text):
    everybody = workers(text)
    for step in range(8):
        before = [(e.state_dict(), list(e.plans)) for e in everybody]
        lockstep([e.begin(step, World(r, 3)) for r, e in enumerate(everybody)])
        given = [tensors_of(step, rank) for rank in range(3)]
        given[step % 3]["b.w"][0] = math.nan if step % 2 else -math.inf
        lockstep([e.exchange(t, step, World(r, 3)) for r, (e, t) in enumerate(zip(everybody, given, strict=True))])
        for exchanger, (state, plans) in zip(everybody, before, strict=True):
            assert not exchanger.settle()
            assert_same(exchanger.state_dict() | {"skipped_steps": step}, state)
            assert exchanger.plans == plans
        train(everybody, [step])  # good steps between


@EVERY
def test_bad_steps_change_no_later_step(text):
    """The weights and plans of the good steps are those of a run that never saw the bad ones."""
    straight, disturbed = workers(text), workers(text)
    for step in range(9):
        _, expected = train(straight, [step])
        train(disturbed, [step], tensors=lambda *_: {s.name: draw("zeros", s.shape) + math.nan for s in LAYERS})
        _, got = train(disturbed, [step])
        for a, b in zip(expected, got, strict=True):
            assert_same(a, b)
        assert [e.plans for e in disturbed] == [e.plans for e in straight]


@EVERY
def test_a_bad_step_in_a_gossip_keeps_one_plan_on_all_ranks(text):
    """There the other ranks go on, so the plan of that step stays for the bad one, too."""
    rules = {spec.name: parse(text) for spec in LAYERS} | {"d": parse("gossip(identity(), ring())")}
    everybody = [Exchanger(LAYERS, rules, seed=7) for _ in range(3)]
    for step in range(9):
        given = [tensors_of(step, rank) for rank in range(3)]
        if step % 2:
            given[1]["d"][:] = math.nan
        lockstep([e.round(t, step, World(r, 3)) for r, (e, t) in enumerate(zip(everybody, given, strict=True))])
        assert all(e.plan == everybody[0].plan and e.plans == everybody[0].plans for e in everybody)


@EVERY
def test_steps_that_are_all_bad_or_all_zeros_end_with_a_plan_too(text):
    def zeros(step, rank, layers):
        return {spec.name: draw("zeros", spec.shape) for spec in layers}

    def bad(step, rank, layers):
        return {spec.name: draw("zeros", spec.shape) + math.nan for spec in layers}

    for tensors in (zeros, bad):
        everybody = workers(text)
        plans, _ = train(everybody, range(9), tensors=tensors)
        assert all(plan == together[0] for together in plans for plan in together)


@EVERY
def test_a_resumed_run_makes_the_same_plans_bit_for_bit(text):
    straight, first, second = workers(text), workers(text), workers(text)
    _, expected = train(straight, range(11))
    train(first, range(5))
    for old, new in zip(first, second, strict=True):
        new.load_state_dict(as_bytes_and_back(old.state_dict()))
    _, resumed = train(second, range(5, 11))
    for a, b in zip(expected, resumed, strict=True):
        assert_same(a, b)
    for a, b in zip(straight, second, strict=True):
        assert_same(a.state_dict(), b.state_dict())


def shuffled(programs, rng):
    """`lockstep` in which ranks run at their own pace: each round in another order."""
    results, answers = {}, [None] * len(programs)
    while len(results) < len(programs):
        asked = {}
        for rank in rng.sample(range(len(programs)), len(programs)):
            try:
                asked[rank] = programs[rank].send(answers[rank])
            except StopIteration as done:
                results[rank] = done.value
        requests = [asked[rank] for rank in range(len(programs))] if asked else []
        answers = requests[0].answer_all(requests) if requests else answers
    return [results[rank] for rank in range(len(programs))]


@EVERY
def test_who_is_slow_and_what_clocks_show_changes_no_plan(text, monkeypatch):
    rng, steps = random.Random(3), range(40)
    plans, outs = train(workers(text), steps)
    monkeypatch.setattr(time, "perf_counter", lambda: rng.uniform(-1e6, 1e6))
    slow_plans, slow_outs = train(workers(text), steps, run=lambda programs: shuffled(programs, rng))
    assert slow_plans == plans
    for a, b in zip(outs, slow_outs, strict=True):
        assert_same(a, b)


@EVERY
def test_one_layer_is_enough(text):
    for shape in ((6, 5), (1,), ()):
        layers = [TensorSpec("a", shape)]
        plans, _ = train(workers(text, layers), range(7), layers)
        assert all(plan == together[0] for together in plans for plan in together)


@EVERY
def test_layers_without_a_menu_are_nobodys_business(text):
    rules = {spec.name: parse(text if spec.name == "c" else "dense()") for spec in LAYERS}
    everybody = [Exchanger(LAYERS, rules, seed=7) for _ in range(3)]
    assert [spec.name for spec, _ in everybody[0].choices] == ["c"]
    train(everybody, range(7))
    assert {name for _, plan in everybody[0].plans for name in plan} <= {spec.name for spec in LAYERS}
    told = menu_part(parse(text), "a").by
    nobody = [Exchanger(LAYERS, parse("ef(topk(density=0.1))"), told) for _ in range(3)]
    assert nobody[0].choices == ()
    train(nobody, range(7))
    assert all(e.plans == nobody[0].plans for e in nobody)
