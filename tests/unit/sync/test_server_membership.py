"""Workers of a GradientServer join, leave, time out and come back."""

import pytest
import torch

from helpers.gradient_server import begin, even, gradient, team, welcome
from thinwire.core import Message
from thinwire.sync.members import Staleness
from thinwire.sync.optimizers import SGD
from thinwire.sync.worker import GradientWorker
from thinwire_lab.published.simulated_workers import run_simulation


@pytest.mark.parametrize("staleness", [Staleness(max_lead=0), Staleness(max_lead=2), Staleness()])
def test_the_others_go_on_when_a_worker_dies(staleness):
    server, workers = team(4, staleness=staleness, optimizer=SGD(0.1), worker_timeout_s=5.0)
    schedule = even(workers, dies={"w1": 20.0})
    took = run_simulation(server, workers, gradient, schedule, updates=400)
    assert server.members.present() == ["w0", "w2", "w3"] and server.evicted == 1
    assert took <= 20 + 400 / 3 * 1.2 + 5.0 + 2  # one deadline and a step were lost, no more


def test_a_worker_that_says_good_bye_is_not_waited_for():
    server, (one, two) = team(2, staleness=Staleness(max_lead=0))
    welcome(server, one)
    assert not begin(server, one)  # two are expected
    welcome(server, two)
    assert begin(server, one) and begin(server, two)
    one.settle(server.handle(one.push(gradient("w0", 0, one.weights)), 0.0))
    assert not begin(server, one) and server.version == 0
    server.handle(Message("leave", "w1"), 0.0)
    assert server.version == 1 and begin(server, one)


def test_what_was_accepted_is_applied_though_its_worker_goes_and_comes_back():
    server, (one, two) = team(2, staleness=Staleness(max_lead=0))
    for worker in (one, two):
        welcome(server, worker)
    assert begin(server, one) and begin(server, two)
    one.settle(server.handle(one.push(gradient("w0", 0, one.weights)), 0.0))
    server.handle(Message("leave", "w0"), 0.0)
    welcome(server, one)
    assert not begin(server, one) and server.applied == 0
    two.settle(server.handle(two.push(gradient("w1", 0, two.weights)), 0.0))
    assert (server.applied, server.version) == (2, 1) and begin(server, one)


def test_what_was_accepted_is_applied_though_all_workers_leave():
    server, (one, two) = team(2, staleness=Staleness(max_lead=0))
    for worker in (one, two):
        welcome(server, worker)
    assert begin(server, one)
    one.settle(server.handle(one.push(gradient("w0", 0, one.weights)), 0.0))
    for name in ("w0", "w1"):
        server.handle(Message("leave", name), 0.0)
    assert server.applied == 1 and not server.pending_updates


def test_a_worker_that_was_away_starts_at_the_slowest_clock_and_repeats_nothing():
    server, (one, two) = team(2, staleness=Staleness(max_lead=1), worker_timeout_s=3.0)
    for worker in (one, two):
        welcome(server, worker)
    for step in range(4):
        assert begin(server, one, 2.0 * step)
        one.settle(server.handle(one.push(gradient("w0", step, one.weights)), 2.0 * step))
        server.expire(2.0 * step + 1.9)
    assert server.members.present() == ["w0"]
    assert server.handle(two.pull(), 8.0).fields["reason"] == "unknown"
    welcome(server, two, 8.0)
    assert server.members.all["w1"].clock == server.members.all["w0"].clock == 4
    assert begin(server, two, 8.0)


def test_a_worker_that_only_waits_is_never_overdue():
    server, (one, two) = team(2, staleness=Staleness(max_lead=0), worker_timeout_s=3.0)
    welcome(server, one, 0.0)
    welcome(server, two, 100.0)
    assert begin(server, one, 100.0) and begin(server, two, 100.0)
    one.settle(server.handle(one.push(gradient("w0", 0, one.weights)), 100.5))
    two.settle(server.handle(two.push(gradient("w1", 0, two.weights)), 102.9))
    assert server.expire(105.0) == [] and begin(server, one, 105.0)
    assert server.expire(106.0) == ["w0", "w1"]


def test_a_worker_without_its_memory_begins_anew_under_ef21():
    server, (worker,) = team(1, "ef21(topk(k=2))")
    welcome(server, worker)
    assert begin(server, worker)
    worker.settle(server.handle(worker.push(gradient("w0", 0, worker.weights)), 0.0))
    again = GradientWorker("w0", server.layers, "ef21(topk(k=2))")
    welcome(server, again)
    assert again.step == 1 and "w0" not in server.decoder.estimates
    assert begin(server, again)
    again.settle(server.handle(again.push(gradient("w0", 1, again.weights)), 0.0))
    assert torch.equal(server.decoder.estimates["w0"]["a"], again.uplink.exchanger.states["a"].own_estimate)
