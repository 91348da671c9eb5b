"""GradientServer trains as sequential, bulk synchronous and asynchronous SGD do, to the bit."""

import math

import pytest
import torch

from helpers.gradient_server import SHAPES, equal, even, gradient, start, straggling, team
from thinwire import TensorSpec, World, lockstep, parse
from thinwire.exchange import Exchanger
from thinwire.sync.members import Staleness
from thinwire.sync.optimizers import SGD, Adam
from thinwire_lab.published.simulated_workers import run_simulation

OPTIMIZERS = [
    SGD(0.1),
    SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    Adam(0.05),
    Adam(0.05, bias_correction=False),
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_asynchronous_worker_is_sequential_training_to_the_bit(optimizer):
    server, workers = team(1, optimizer=optimizer)
    run_simulation(server, workers, gradient, even(workers), updates=30)
    weights, states = start(), {name: optimizer.init(w) for name, w in start().items()}
    for step in range(30):
        gradients = gradient("w0", step, weights)
        for name in weights:
            weights[name], states[name] = optimizer.step(weights[name], gradients[name], states[name])
    assert equal(server.weights, weights)
    assert server.staleness_counts == {0: 30}


@pytest.mark.parametrize(
    "ours, theirs",
    [
        (
            SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
            lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
        ),
        (SGD(0.1, momentum=0.9), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
        (Adam(0.05, weight_decay=0.1), lambda p: torch.optim.AdamW(p, 0.05, weight_decay=0.1)),
    ],
)
def test_server_optimizers_take_the_steps_of_torch(ours, theirs):
    weight, state = start()["a"], ours.init(start()["a"])
    parameter = torch.nn.Parameter(weight.clone())
    optimizer = theirs([parameter])
    for step in range(20):
        parameter.grad = gradient("w0", step, {"a": weight})["a"]
        weight, state = ours.step(weight, parameter.grad, state)
        optimizer.step()
        assert torch.allclose(weight, parameter, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("exchange", ["gather(identity())", "ef(gather(topk(k=2)))", "ef21(gather(topk(k=2)))"])
@pytest.mark.parametrize("schedule", [even, straggling])
def test_a_bound_of_zero_is_bulk_synchronous_training_to_the_bit(exchange, schedule):
    """Whatever the schedule: no tick's model is given out before all updates of the tick before are in."""
    count, ticks, optimizer = 3, 12, SGD(0.1, momentum=0.5)
    server, workers = team(count, exchange, Staleness(max_lead=0), optimizer)
    run_simulation(server, workers, gradient, schedule(workers), updates=count * ticks)
    layers = [TensorSpec(name, shape) for name, shape in SHAPES.items()]
    exchangers = [Exchanger(layers, parse(exchange)) for _ in range(count)]
    weights, states = start(), {name: optimizer.init(w) for name, w in start().items()}
    for step in range(ticks):
        programs = [
            e.run_step(gradient(f"w{r}", step, weights), step, World(r, count)) for r, e in enumerate(exchangers)
        ]
        mean = lockstep(programs)[0]
        for name in weights:
            weights[name], states[name] = optimizer.step(weights[name], mean[name], states[name])
    if "ef21" in exchange:  # a server adds up its estimates, ranks their mean: the same up to rounding
        assert all(torch.allclose(server.weights[name], weights[name], atol=1e-5) for name in weights)
    else:
        assert equal(server.weights, weights)
    assert server.version == ticks and server.staleness_counts == {0: count * ticks}


def reference_asynchronous(count, schedule, updates, lr):
    """Ten lines that know no message: the worker that is ready first pushes first, and every update counts for 1/n."""
    weights = start()
    names, steps = [f"w{i}" for i in range(count)], dict.fromkeys([f"w{i}" for i in range(count)], 0)
    ready = {w: (schedule.seconds(w, 0), i) for i, w in enumerate(names)}
    held = {w: gradient(w, 0, weights) for w in names}
    for turn in range(updates):
        now, _ = min(ready.values())
        worker = min(ready, key=ready.get)
        weights = {n: weights[n] - lr * (torch.zeros_like(g) + g * (1 / count)) for n, g in held[worker].items()}
        steps[worker] += 1
        held[worker] = gradient(worker, steps[worker], weights)
        ready[worker] = (now + schedule.seconds(worker, steps[worker]), count + turn)
    return weights


@pytest.mark.parametrize("max_lead", [math.inf, 10**9])
def test_an_unbounded_pace_is_asynchronous_training_on_the_same_schedule(max_lead):
    server, workers = team(4, staleness=Staleness(max_lead=max_lead), optimizer=SGD(0.3))
    schedule = straggling(workers)
    run_simulation(server, workers, gradient, schedule, updates=200)
    assert equal(server.weights, reference_asynchronous(4, schedule, 200, 0.3))
