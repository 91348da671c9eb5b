"""A client, a worker or a server that was killed and started anew, from its checkpoint or without."""

import copy

import pytest
import torch

from thinwire.sync.client import FederatedClient
from thinwire.sync.federated import Federation, Rounds

EF21 = "ef21(topk(k=1))"
GRADIENT = torch.tensor([1.0, 2.0, 3.0, 4.0])


def welcome(machine, party, now=0.0):
    party.welcomed(machine.handle(party.join(), now))
    return party


def turn(machine, client, by, now=0.0):
    """One round of a client that is asked: whether its update was accepted."""
    if not client.begin(machine.handle(client.pull(), now)):
        return False
    return client.settle(machine.handle(client.push({"w": client.weights["w"] + by}, 1), now))


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("exchange", [EF21, "ef(topk(k=1))"])
def test_an_update_counts_though_its_client_is_started_anew_in_the_same_round(exchange, stored):
    def federation():
        return Federation({"w": torch.zeros(4)}, Rounds(2, 5, deadline=10.0), exchange, expected=2)

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
