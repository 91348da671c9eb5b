"""Which updates a GradientServer applies: bounds on staleness, duplicates, rejected updates."""

import pytest
import torch

from helpers.gradient_server import SHAPES, begin, equal, even, gradient, shrinking, start, straggling, team, welcome
from thinwire.core import Message
from thinwire.sync.members import Staleness
from thinwire.sync.optimizers import SGD
from thinwire_lab.published.simulated_workers import run_simulation


@pytest.mark.parametrize("max_lead", [0, 1, 3, 7])
def test_no_worker_gets_further_ahead_than_the_bound_in_ten_thousand_updates(max_lead):
    server, workers = team(4, staleness=Staleness(max_lead=max_lead), optimizer=SGD(0.01))
    schedule = straggling(workers, seed=max_lead)
    updates = 10_000 if max_lead == 3 else 500
    run_simulation(server, workers, shrinking, schedule, updates=updates)
    assert max(server.lead_counts) == max_lead  # reached, for one worker is ten times slower, and never exceeded
    assert max(server.staleness_counts) <= 2 * max_lead * (len(workers) - 1)
    assert sum(server.staleness_counts.values()) == server.applied >= updates
    assert not server.rejections


def test_late_updates_are_refused_and_counted_and_none_that_was_applied_was_staler():
    server, workers = team(4, "ef(topk(k=2))", Staleness(max_staleness=8), SGD(0.05))
    run_simulation(server, workers, shrinking, straggling(workers), updates=1_000)
    assert max(server.staleness_counts) <= 8
    assert server.rejections["late"] == workers[0].rejected > 10
    assert server.applied == sum(worker.accepted for worker in workers)


def test_of_a_thousand_duplicates_none_is_applied_twice():
    server, workers = team(3, "ef(topk(k=2))", optimizer=SGD(0.05))
    run_simulation(server, workers, shrinking, even(workers, repeats=1.0), updates=1_000)
    once, others = team(3, "ef(topk(k=2))", optimizer=SGD(0.05))
    run_simulation(once, others, shrinking, even(others), updates=1_000)
    assert server.repeated >= 1_000 and server.applied == once.applied == server.version
    assert equal(server.weights, once.weights)


def test_a_duplicate_gets_the_first_ones_answer():
    server, (worker,) = team(1, staleness=Staleness(max_staleness=5))
    welcome(server, worker)
    assert begin(server, worker)
    good = worker.push(gradient("w0", 0, worker.weights))
    assert server.handle(good, 0.0).kind == server.handle(good, 1.0).kind == "accepted"
    worker.settle(server.handle(good, 2.0))
    bad = Message("push", "w0", 1, fields={"config": server.digest, "version": 99}, payload=good.payload)
    assert [server.handle(bad, 3.0).fields["reason"] for _ in range(2)] == ["fields", "fields"]
    assert server.handle(good, 4.0).fields["reason"] == "old"
    assert server.applied == 1


@pytest.mark.parametrize(
    "exchange", ["ef(topk(k=1))", "ef(dense())", 'ef(topk(k=2, values="bf16"))', "scam(topk(k=2))"]
)
def test_what_was_refused_stays_in_the_residual(exchange):
    """Sum of what the server took + residual = sum of all gradients, with every third update refused."""
    server, (worker,) = team(1, exchange, Staleness(max_staleness=0), SGD(1.0))
    welcome(server, worker)
    total = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    for step in range(12):
        assert begin(server, worker)
        given = {name: torch.full(shape, float(step % 5 + 1)) for name, shape in SHAPES.items()}
        message = worker.push(given)
        if step % 3 == 2:
            server.version += 1  # as if another worker had been quicker
        accepted = worker.settle(server.handle(message, 0.0))
        assert accepted == (step % 3 != 2)
        total = {name: total[name] + given[name] for name in total}
    for name in total:
        taken = start()[name] - server.weights[name]
        residual = worker.uplink.exchanger.states[name].residual
        assert torch.allclose(taken + residual, total[name], atol=1e-5)


def test_under_ef21_a_refused_update_changes_no_belief_on_either_side():
    server, (worker,) = team(1, "ef21(topk(k=2))", Staleness(max_staleness=0), SGD(0.1))
    welcome(server, worker)
    for step in range(9):
        assert begin(server, worker)
        message = worker.push(gradient("w0", step, worker.weights))
        server.version += step % 3 == 2
        worker.settle(server.handle(message, 0.0))
        for name in SHAPES:
            assert torch.equal(server.decoder.estimates["w0"][name], worker.uplink.exchanger.states[name].own_estimate)


def test_a_step_that_would_overflow_is_not_taken():
    server, (worker,) = team(1, optimizer=SGD(10.0))
    welcome(server, worker)
    assert begin(server, worker)
    before = server.weights
    server.handle(worker.push({name: torch.full(shape, 3e38) for name, shape in SHAPES.items()}), 0.0)
    assert equal(server.weights, before) and (server.overflowed, server.version) == (1, 0)
