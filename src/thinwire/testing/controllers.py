"""Laws of controllers: all ranks have the same plan, from what all ranks have in common."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

from torch import Tensor

from ..aggregators import Adapt, GatherMean, Gossip
from ..catalog import is_controller
from ..compressors import Identity, TopK
from ..controllers.composite import find_menu_part
from ..core import Aggregator, Controller, HasMenu, Program, TensorSpec, World
from ..drivers.lockstep import lockstep
from ..exchange import Exchanger
from ..feedback import ErrorFeedback
from ..topologies import Ring
from .laws import Law, check_all, law
from .lockstep import assert_same, restore_from_bytes
from .tensors import draw

CONTROLLER_LAWS: list[Law] = []
LAYERS = (TensorSpec("a", (8, 6)), TensorSpec("b.w", (40,)), TensorSpec("c", (3, 4, 2)), TensorSpec("d", (1,)))

Tensors = Callable[[int, int, Sequence[TensorSpec]], dict[str, Tensor]]
Carry = Callable[[list[Program[Any]]], list[Any]]


def check_controller(controller: Controller[Any] | Aggregator[Any]) -> None:
    """Check all laws of controllers.

    Args:
        controller: a controller, which chooses from ef(adapt(topk(density=0.1))); or a composition with a menu
            and a controller inside.

    Raises:
        AssertionError: a law is broken.
    """
    if is_controller(controller):
        controller = ErrorFeedback(Adapt((GatherMean(TopK(density=0.1)),), controller=controller))  # type: ignore[arg-type]
    check_all(CONTROLLER_LAWS, controller)


def menu_of(composition: Aggregator[Any]) -> HasMenu:
    found = find_menu_part(composition, "a")
    assert found is not None, f"{composition!r} has no menu to choose from"
    return found


def workers(composition: Aggregator[Any], layers: Sequence[TensorSpec] = LAYERS, ranks: int = 3) -> list[Exchanger]:
    return [Exchanger(layers, composition, seed=7) for _ in range(ranks)]


def tensors_of(step: int, rank: int, layers: Sequence[TensorSpec] = LAYERS) -> dict[str, Tensor]:
    """Large and small tensors, different on each rank; the first layer decays, the last is zero at some steps."""
    sizes = {spec.name: 10.0 ** (rank - at) for at, spec in enumerate(layers)}
    tensors = {s.name: draw("gaussian", s.shape, seed=100 * step + rank) * sizes[s.name] for s in layers}
    tensors[layers[0].name] *= 0.5**step
    if step % 3 == 0:
        tensors[layers[-1].name].zero_()
    return tensors


def zeros(step: int, rank: int, layers: Sequence[TensorSpec]) -> dict[str, Tensor]:
    return {spec.name: draw("zeros", spec.shape) for spec in layers}


def bad(step: int, rank: int, layers: Sequence[TensorSpec]) -> dict[str, Tensor]:
    return {spec.name: draw("zeros", spec.shape) + math.nan for spec in layers}


def train(
    exchangers: Sequence[Exchanger],
    steps: Sequence[int],
    layers: Sequence[TensorSpec] = LAYERS,
    tensors: Tensors = tensors_of,
    run: Carry = lambda programs: list(lockstep(programs)),
) -> tuple[list[list[dict[str, int]]], list[dict[str, Tensor]]]:
    """Run steps; return every rank's plan of each step, and the last averages."""
    plans, outs = [], []
    for step in steps:
        size, lr = len(exchangers), 0.1 * 0.3 ** (step // 4)
        outs = run([e.run_step(tensors(step, r, layers), step, World(r, size), lr) for r, e in enumerate(exchangers)])
        plans.append([dict(e.plan) for e in exchangers])
    return plans, outs


@law(CONTROLLER_LAWS, ranks=(1, 2, 5))
def all_ranks_have_the_same_plan_whatever_they_send(composition: Aggregator[Any], ranks: int) -> None:
    exchangers = workers(composition, ranks=ranks)
    plans, _ = train(exchangers, range(9))
    assert all(plan == together[0] for together in plans for plan in together)
    assert all(e.plans == exchangers[0].plans for e in exchangers)


@law(CONTROLLER_LAWS)
def every_layer_has_an_option_of_its_menu(composition: Aggregator[Any]) -> None:
    options = len(menu_of(composition).menu.options)
    for plan, *_ in train(workers(composition), range(9))[0]:
        assert plan.keys() == {spec.name for spec in LAYERS}
        assert all(0 <= option < options for option in plan.values())


@law(CONTROLLER_LAWS)
def two_equal_runs_choose_alike(composition: Aggregator[Any]) -> None:
    assert train(workers(composition), range(9))[0] == train(workers(composition), range(9))[0]


@law(CONTROLLER_LAWS)
def a_bad_step_leaves_no_trace(composition: Aggregator[Any]) -> None:
    exchangers = workers(composition)
    for step in range(8):
        before = [(e.state_dict(), list(e.plans)) for e in exchangers]
        lockstep([e.begin(step, World(r, 3)) for r, e in enumerate(exchangers)])
        gradients = [tensors_of(step, rank) for rank in range(3)]
        gradients[step % 3]["b.w"][0] = math.nan if step % 2 else -math.inf
        lockstep([e.exchange(t, step, World(r, 3)) for r, (e, t) in enumerate(zip(exchangers, gradients, strict=True))])
        for exchanger, (state, plans) in zip(exchangers, before, strict=True):
            assert not exchanger.settle()
            assert_same(exchanger.state_dict() | {"skipped_steps": step}, state)
            assert exchanger.plans == plans
        train(exchangers, [step])  # good steps between


@law(CONTROLLER_LAWS)
def bad_steps_change_no_later_step(composition: Aggregator[Any]) -> None:
    """The averages and plans of the good steps are those of a run without the bad ones."""
    straight, disturbed = workers(composition), workers(composition)
    for step in range(9):
        _, expected = train(straight, [step])
        train(disturbed, [step], tensors=bad)
        _, got = train(disturbed, [step])
        for a, b in zip(expected, got, strict=True):
            assert_same(a, b)
        assert [e.plans for e in disturbed] == [e.plans for e in straight]


@law(CONTROLLER_LAWS)
def a_bad_step_in_a_gossip_keeps_one_plan_on_all_ranks(composition: Aggregator[Any]) -> None:
    """With gossip the other ranks complete the step, so the bad rank keeps the plan of that step, too."""
    gossip: Aggregator[Any] = Gossip(Identity(), Ring())
    rules = {spec.name: composition for spec in LAYERS} | {"d": gossip}
    exchangers = [Exchanger(LAYERS, rules, seed=7) for _ in range(3)]
    for step in range(9):
        gradients = [tensors_of(step, rank) for rank in range(3)]
        if step % 2:
            gradients[1]["d"][:] = math.nan
        lockstep([e.run_step(t, step, World(r, 3)) for r, (e, t) in enumerate(zip(exchangers, gradients, strict=True))])
        assert all(e.plan == exchangers[0].plan and e.plans == exchangers[0].plans for e in exchangers)


@law(CONTROLLER_LAWS)
def steps_that_are_all_bad_or_all_zeros_end_with_a_plan_too(composition: Aggregator[Any]) -> None:
    for tensors in (zeros, bad):
        plans, _ = train(workers(composition), range(9), tensors=tensors)
        assert all(plan == together[0] for together in plans for plan in together)


@law(CONTROLLER_LAWS)
def a_resumed_run_makes_the_same_plans_bit_for_bit(composition: Aggregator[Any]) -> None:
    straight, first, second = workers(composition), workers(composition), workers(composition)
    _, expected = train(straight, range(11))
    train(first, range(5))
    for old, new in zip(first, second, strict=True):
        new.load_state_dict(restore_from_bytes(old.state_dict()))
    _, resumed = train(second, range(5, 11))
    for a, b in zip(expected, resumed, strict=True):
        assert_same(a, b)
    for one, other in zip(straight, second, strict=True):
        assert_same(one.state_dict(), other.state_dict())


def run_in_any_order(programs: Sequence[Program[Any]], rng: random.Random) -> list[Any]:
    """`lockstep` with the ranks in random order in each round."""
    results: dict[int, Any] = {}
    answers: list[Any] = [None] * len(programs)
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


@law(CONTROLLER_LAWS)
def slow_ranks_and_clocks_change_no_plan(composition: Aggregator[Any]) -> None:
    rng, steps = random.Random(3), range(40)
    plans, outs = train(workers(composition), steps)
    with mock.patch.object(time, "perf_counter", lambda: rng.uniform(-1e6, 1e6)):
        slow = train(workers(composition), steps, run=lambda programs: run_in_any_order(programs, rng))
    assert slow[0] == plans
    for a, b in zip(outs, slow[1], strict=True):
        assert_same(a, b)


@law(CONTROLLER_LAWS)
def one_layer_is_enough(composition: Aggregator[Any]) -> None:
    shapes: tuple[tuple[int, ...], ...] = ((6, 5), (1,), ())
    for shape in shapes:
        layers = [TensorSpec("a", shape)]
        plans, _ = train(workers(composition, layers), range(7), layers)
        assert all(plan == together[0] for together in plans for plan in together)


@law(CONTROLLER_LAWS)
def layers_without_a_menu_are_left_alone(composition: Aggregator[Any]) -> None:
    plain: Aggregator[Any] = GatherMean(TopK(density=0.1))
    rules = {spec.name: composition if spec.name == "c" else plain for spec in LAYERS}
    exchangers = [Exchanger(LAYERS, rules, seed=7) for _ in range(3)]
    assert [spec.name for spec, _ in exchangers[0].menus] == ["c"]
    train(exchangers, range(7))
    assert {name for _, plan in exchangers[0].plans for name in plan} <= {spec.name for spec in LAYERS}
    alone = [Exchanger(LAYERS, ErrorFeedback(plain), menu_of(composition).controller) for _ in range(3)]
    assert alone[0].menus == ()
    train(alone, range(7))
    assert all(e.plans == alone[0].plans for e in alone)
