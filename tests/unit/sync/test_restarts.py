"""A client, a worker or a server that was killed and started anew, from its checkpoint or without."""

import copy

import pytest
import torch

from thinwire.core import Message, PeerLostError
from thinwire.drivers.in_process import InProcess
from thinwire.serving.loops import run_client, run_worker
from thinwire.sync.client import FederatedClient
from thinwire.sync.federated import FederatedServer
from thinwire.sync.members import Staleness
from thinwire.sync.optimizers import SGD
from thinwire.sync.sampling import FederatedConfig
from thinwire.sync.server import GradientServer
from thinwire.sync.worker import GradientWorker

EF21 = "ef21(topk(k=1))"
GRADIENT = torch.tensor([1.0, 2.0, 3.0, 4.0])


def welcome(machine, client, now=0.0):
    client.handle_welcome(machine.handle(client.join(), now))
    return client


def turn(machine, client, by, now=0.0):
    """One round of a client that is asked: whether its update was accepted."""
    if not client.begin(machine.handle(client.pull(), now)):
        return False
    return client.settle(machine.handle(client.push({"w": client.weights["w"] + by}, 1), now))


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("exchange", [EF21, "ef(topk(k=1))"])
def test_an_update_counts_though_its_client_is_started_anew_in_the_same_round(exchange, stored):
    def federation():
        return FederatedServer({"w": torch.zeros(4)}, FederatedConfig(2, 5, round_timeout_s=10.0), exchange, expected=2)

    results = []
    for dies in (False, True):
        server = federation()
        one, two = (welcome(server, FederatedClient(name, server.layers, exchange)) for name in "ab")
        assert two.begin(server.handle(two.pull(), 0.0)) and turn(server, one, 1.0)
        if dies:
            one = welcome(server, FederatedClient("a", server.layers, exchange))
            welcome(server, one)
            assert not one.begin(server.handle(one.pull(), 0.0))
        if dies and stored:
            kept, server = copy.deepcopy(server.state_dict()), federation()
            server.load_state_dict(kept)
        message = two.push({"w": two.weights["w"] - 2}, 1)
        assert two.settle(server.handle(message, 1.0)) and server.round == 1
        results.append(server.weights["w"])
    assert torch.equal(*results)
    welcome(server, one)
    assert turn(server, one, 1.0, 2.0)


def resuming(make, at, client):
    """(transport, machines): a server that is stored, goes on for some messages, and is then resumed as it was stored."""
    machines, count = [make()], 0
    stored = None

    def answer(message):
        nonlocal count, stored
        count += 1
        if count == at[0]:
            stored = copy.deepcopy(machines[-1].state_dict())
        if count == at[1]:
            machines.append(make())
            machines[-1].load_state_dict(stored)
        return machines[-1].handle(message, 0.0)

    return InProcess(answer, client), machines


@pytest.mark.parametrize("at", [(5, 9), (5, 10), (4, 10), (4, 9), (2, 9), (3, 8)])
@pytest.mark.parametrize("exchange", [EF21, "ef(ef21(topk(k=1)))"])
def test_a_worker_and_a_resumed_server_believe_the_same_under_ef21(exchange, at):
    transport, machines = resuming(lambda: GradientServer({"w": torch.ones(4)}, SGD(0.1), exchange), at, "w")
    worker = GradientWorker("w", machines[0].layers, exchange)
    run_worker(transport, worker, lambda weights, step: {"w": GRADIENT}, steps=12, follow_restarts=True)
    memory = worker.uplink.exchanger.states["w"]
    assert len(machines) == 2 and machines[1].members.all["w"].last_accepted == worker.last_accepted == 11
    assert torch.equal(
        machines[1].decoder.estimates["w"]["w"], (memory if exchange == EF21 else memory.inner).own_estimate
    )


def test_what_a_resumed_server_refuses_stays_in_a_residual_around_ef21():
    exchange = "ef(ef21(topk(k=1)))"
    first = GradientServer({"w": torch.ones(4)}, SGD(0.1), exchange)
    worker = welcome(first, GradientWorker("w", first.layers, exchange))
    empty = copy.deepcopy(first.state_dict())
    assert worker.begin(first.handle(worker.pull(), 0.0))
    assert worker.settle(first.handle(worker.push({"w": GRADIENT}), 0.0))
    second = GradientServer({"w": torch.ones(4)}, SGD(0.1), exchange)
    second.load_state_dict(empty)
    before = worker.uplink.exchanger.states["w"].residual
    worker.version = 0
    reply = second.handle(worker.push({"w": GRADIENT}), 0.0)
    assert reply.fields["reason"] == "memory" and not worker.settle(reply)
    welcome(second, worker)
    assert torch.equal(worker.uplink.exchanger.states["w"].residual, before + GRADIENT)
    assert not worker.uplink.exchanger.states["w"].inner.own_estimate.any() and "w" not in second.decoder.estimates


@pytest.mark.parametrize("at", [(4, 8), (4, 9), (3, 8), (3, 9), (2, 7)])
def test_a_client_and_a_resumed_federation_believe_the_same_under_ef21(at):
    transport, machines = resuming(lambda: FederatedServer({"w": torch.ones(4)}, FederatedConfig(1, 12), EF21), at, "c")
    client = FederatedClient("c", machines[0].layers, EF21)
    run_client(transport, client, lambda weights, round: ({"w": weights["w"] - GRADIENT}, 1), follow_restarts=True)
    assert len(machines) == 2 and machines[1].clients["c"].last_accepted == client.last_accepted == 11
    assert torch.equal(machines[1].decoder.estimates["c"]["w"], client.uplink.exchanger.states["w"].own_estimate)


@pytest.mark.parametrize("joins", [True, False])
@pytest.mark.parametrize("down", [None, "identity()", "topk(k=1)"])
def test_a_client_trains_on_the_model_of_the_resumed_federation_not_on_one_of_the_same_number(down, joins):
    def federation():
        return FederatedServer(
            {"w": torch.zeros(4)}, FederatedConfig(1, 50, max_strikes=1), expected=2, downlink_compression=down
        )

    first = federation()
    one, two = (welcome(first, FederatedClient(name, first.layers, downlink_compression=down)) for name in "ab")
    stored = copy.deepcopy(first.state_dict())
    while one.model_round < 4:
        turn(first, one, -1.0), turn(first, two, -1.0)
    second = federation()
    second.load_state_dict(stored)
    two = welcome(second, FederatedClient("b", second.layers, downlink_compression=down))
    if joins:
        welcome(second, one)
    while second.round < one.model_round or second.round < 5 or "a" not in second.sampled:
        if not turn(second, two, 100.0):
            second._close_round(0.0)  # the other was asked and is away
    reply = second.handle(one.pull(), 0.0)
    if not joins:
        assert reply.fields["reason"] == "unknown" and not one.begin(reply)
        reply = second.handle(welcome(second, one).pull(), 0.0)
    assert one.begin(reply) and torch.equal(one.weights["w"], second.copy.model["w"])
    assert [client.strikes for client in second.clients.values()] == [0, 0]


def test_a_worker_that_was_given_as_many_changes_by_the_server_before_holds_none_of_the_resumed_one():
    def server():
        return GradientServer({"w": torch.ones(4)}, SGD(0.1), downlink_compression="topk(k=1)")

    first = server()
    worker = welcome(first, GradientWorker("w", first.layers, downlink_compression="topk(k=1)"))
    for count in range(4):
        assert worker.begin(first.handle(worker.pull(), 0.0))
        assert worker.settle(first.handle(worker.push({"w": GRADIENT}), 0.0))
        if count == 1:
            stored = copy.deepcopy(first.state_dict())
            welcome(first, worker)  # from now on it counts anew
    second = server()
    second.load_state_dict(stored)
    assert second.handle(worker.pull(), 0.0).fields["reason"] == "unknown"
    welcome(second, worker)
    for _ in range(6):
        assert worker.begin(second.handle(worker.pull(), 0.0))
        assert torch.equal(worker.weights["w"], second.copies.pending["w"]["w"])


def test_a_servers_life_is_not_stored_and_is_another_one_after_loading():
    make = [
        lambda: GradientServer({"w": torch.ones(4)}, SGD(0.1)),
        lambda: FederatedServer({"w": torch.ones(4)}, FederatedConfig(1, 1)),
    ]
    for machine in (each() for each in make):
        life, state = machine.server_epoch, machine.state_dict()
        assert life not in str(state)
        machine.load_state_dict(state)
        assert machine.server_epoch != life


def restarted(make, at, resumed, client):
    """(transport, machines): after `at` messages the server is another one, from its stored state or from zero."""
    machines, count = [make()], 0

    def answer(message):
        nonlocal count
        count += 1
        if count == at:
            machines.append(make())
            if resumed:
                machines[1].load_state_dict(copy.deepcopy(machines[0].state_dict()))
        return machines[-1].handle(message, 0.0)

    return InProcess(answer, client), machines


@pytest.mark.parametrize("at", [8, 9])  # a pull, a push
@pytest.mark.parametrize("federated", [False, True])
@pytest.mark.parametrize(
    ("resumed", "told", "words"),
    [
        (True, True, ""),
        (True, False, "from a saved state; pass follow_restarts"),
        (False, True, "another training"),
        (False, False, "another training"),
    ],
)
def test_a_worker_notices_a_restarted_server_and_goes_on_only_if_told_and_resumed(at, federated, resumed, told, words):
    def make():
        return (
            FederatedServer({"w": torch.zeros(4)}, FederatedConfig(1, 12))
            if federated
            else GradientServer({"w": torch.ones(4)}, SGD(0.1))
        )

    def run():
        if federated:
            client = FederatedClient("w", machines[0].layers)
            train = lambda weights, round: ({"w": weights["w"] - GRADIENT}, 1)  # noqa: E731
            return run_client(transport, client, train, follow_restarts=told)
        worker = GradientWorker("w", machines[0].layers)
        return run_worker(transport, worker, lambda weights, step: {"w": GRADIENT}, steps=12, follow_restarts=told)

    transport, machines = restarted(make, at, resumed, "w")
    if words:
        with pytest.raises(PeerLostError, match=words):
            run()
        second = machines[1]  # nothing waits for the worker that stopped
        assert second.clients["w"].has_left if federated else second.members.present() == []
    else:
        assert run() >= 11 and (machines[1].round if federated else machines[1].applied) >= 11


@pytest.mark.parametrize("boot", [0.0, 5.0, 1e6 + 60, 1e9])
def test_a_resumed_federation_counts_its_deadline_by_its_own_clock(boot):
    first, second = (
        FederatedServer({"w": torch.zeros(4)}, FederatedConfig(2, 5, round_timeout_s=10.0)) for _ in range(2)
    )
    for name in "ab":
        welcome(first, FederatedClient(name, first.layers), 1e6)
    second.load_state_dict(first.state_dict())
    assert second.expire(boot) == [] and second.expire(boot + 9.9) == []
    assert sorted(second.expire(boot + 10)) == ["a", "b"] and second.round == 1


@pytest.mark.parametrize("boot", [0.0, 5.0, 1e6 + 60, 1e9])
def test_a_resumed_server_counts_its_deadline_by_its_own_clock(boot):
    first, second = (
        GradientServer({"w": torch.zeros(4)}, SGD(0.1), staleness=Staleness(0), workers=2, worker_timeout_s=10.0)
        for _ in range(2)
    )
    for name in "ab":
        worker = welcome(first, GradientWorker(name, first.layers), 1e6)
    assert worker.begin(first.handle(worker.pull(), 1e6))
    assert worker.settle(first.handle(worker.push({"w": torch.ones(4)}), 1e6))
    second.load_state_dict(first.state_dict())
    welcome(second, worker, boot)
    assert second.expire(boot + 10) == [] and second.expire(boot + 10.1) == ["a"]
    assert second.version == 1 and worker.begin(second.handle(worker.pull(), boot + 11))


def test_a_worker_that_left_leaves_no_copy_of_the_model_but_its_estimate():
    server = GradientServer(
        {"w": torch.zeros(4)}, SGD(0.1), EF21, downlink_compression="topk(k=1)", worker_timeout_s=10.0
    )
    for place in range(6):
        worker = welcome(server, GradientWorker(f"pod-{place}", server.layers, EF21, "topk(k=1)"), 20.0 * place)
        for _ in range(2):
            assert worker.begin(server.handle(worker.pull(), 20.0 * place))
            assert worker.settle(server.handle(worker.push({"w": GRADIENT}), 20.0 * place))
        if place % 2:
            server.handle(Message("leave", worker.name), 20.0 * place)
    assert server.members.present() == [] and server.evicted == 3
    assert not server.copies.copies and not server.copies.pending and not server.copies.num_sent
    assert not server.handle(worker.join(), 201.0).fields["reset"]
    assert torch.equal(server.decoder.estimates["pod-5"]["w"], worker.uplink.exchanger.states["w"].own_estimate)
