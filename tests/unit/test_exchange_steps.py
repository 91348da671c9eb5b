"""A step that failed knows it: nothing of it is committed, however it is settled."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from thinwire import Exchanger, TensorSpec, World, loopback, parse
from thinwire.controllers import Accordion, BySize, CompositeController, Fixed
from thinwire.core import Aggregator, Capability, flatten_state, has

LAYERS = [TensorSpec("w", (6,)), TensorSpec("v", (4,)), TensorSpec("u", (5,))]
ALONE = World(0, 1)
GIVEN = {spec.name: torch.ones(spec.shape) for spec in LAYERS}
fails = []


@dataclass(frozen=True)
class Fails:
    """Raises while its name is among `fails`, before or after its request."""

    inner: Aggregator
    when: str

    def init(self, spec, key):
        return self.inner.init(spec, key)

    def reduce(self, tensor, spec, state, ctx):
        if self.when in fails:
            raise ZeroDivisionError(self.when)
        out = yield from self.inner.reduce(tensor, spec, state, ctx)
        if f"{self.when} later" in fails:
            raise ZeroDivisionError(self.when)
        return out


def memory_of(exchanger):
    return {
        f"{name}/{key}": value.tolist()
        for name, state in exchanger.states.items()
        for key, value in flatten_state(state).items()
    }


def exchange(exchanger, name, step):
    return loopback(exchanger.exchange({name: GIVEN[name]}, step, ALONE))


@pytest.fixture
def exchanger():
    fails.clear()
    made = Exchanger(LAYERS, {s.name: Fails(parse("ef(topk(k=1))"), s.name) for s in LAYERS})
    loopback(made.run_step(GIVEN, 0, ALONE))
    yield made
    fails.clear()


@pytest.mark.parametrize("fault", ["v", "v later"])
@pytest.mark.parametrize("end", ["settle", "begin", "state_dict", "abandon"])
def test_one_failed_exchange_drops_the_whole_step(exchanger, fault, end):
    before = memory_of(exchanger)
    loopback(exchanger.begin(1, ALONE))
    exchange(exchanger, "w", 1)
    fails.append(fault)
    with pytest.raises(ZeroDivisionError):
        exchange(exchanger, "v", 1)
    exchange(exchanger, "u", 1)
    if end == "settle":
        assert not exchanger.settle()
    elif end == "begin":
        loopback(exchanger.begin(2, ALONE))
    else:
        getattr(exchanger, end)()
    assert memory_of(exchanger) == before and exchanger.skipped_steps == 0
    fails.clear()
    loopback(exchanger.run_step(GIVEN, 2, ALONE))
    assert memory_of(exchanger) != before


def test_an_exchange_that_is_closed_before_its_end_failed(exchanger):
    before = memory_of(exchanger)
    exchange(exchanger, "w", 1)
    program = exchanger.exchange({"v": GIVEN["v"]}, 1, ALONE)
    next(program)
    program.close()
    assert not exchanger.settle() and memory_of(exchanger) == before


def test_an_exchange_that_is_closed_late_says_nothing_of_the_next_step(exchanger):
    before = memory_of(exchanger)
    late = exchanger.exchange({"v": GIVEN["v"]}, 1, ALONE)
    next(late)
    exchanger.abandon()
    exchange(exchanger, "w", 2)
    late.close()
    assert exchanger.settle() and memory_of(exchanger) != before


def test_the_plan_of_a_failed_step_is_taken_back():
    fails.clear()
    text = "switch(ef(topk(k=1)), dense(), controller=accordion(every=1))"
    made = Exchanger(LAYERS, parse(text))
    for step in range(3):
        loopback(made.run_step({n: t * 4.0**step for n, t in GIVEN.items()}, step, ALONE))
    plan, plans, state = made.plan, list(made.plans), flatten_state(made.controller_state)
    loopback(made.begin(3, ALONE))
    with pytest.raises(KeyError, match="unknown layer 'x'"):
        loopback(made.exchange({"x": torch.ones(3)}, 3, ALONE))
    assert not made.settle()
    assert (made.plan, made.plans) == (plan, plans)
    now = flatten_state(made.controller_state)
    assert all(torch.equal(torch.as_tensor(now[key]), torch.as_tensor(state[key])) for key in state)


class Notes:
    """A controller that keeps the learning rates it was told."""

    def __init__(self):
        self.rates = []

    def init(self, layers):
        return {spec.name: 0 for spec in layers}, ()

    def observe(self, spec, observation, state, ctx):
        self.rates.append(ctx.lr)
        return state

    def replan(self, plan, state, ctx):
        self.rates.append(ctx.lr)
        return plan, state
        yield


def test_the_learning_rate_comes_with_the_step_and_holds_on():
    notes = Notes()
    made = Exchanger(LAYERS[:1], parse("ef(topk(k=1))"), notes)
    given = {"w": GIVEN["w"]}
    for step, lr in enumerate((None, 0.5, None, 0.25)):
        loopback(made.run_step(given, step, ALONE, lr))
    assert notes.rates == [None, None, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25]
    stored = made.state_dict()
    resumed = Exchanger(LAYERS[:1], parse("ef(topk(k=1))"), Notes())
    resumed.load_state_dict(stored)
    assert resumed.lr == 0.25


def test_controllers_that_never_change_their_mind_are_not_shown_layers():
    def observes(controller):
        return not has(controller, Capability.NEVER_OBSERVES)

    assert not observes(Fixed()) and not observes(BySize()) and observes(Accordion()) and observes(Notes())
    both = [(frozenset({"w"}), Fixed()), (frozenset({"v"}), BySize())]
    assert not observes(CompositeController(tuple(both))) and observes(
        CompositeController((*both, (frozenset({"u"}), Accordion())))
    )
