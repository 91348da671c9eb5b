"""A client that has no update to give, and a server with a decoder that fails: the round goes on without either."""

import logging
import math
import threading

import pytest
import torch

from thinwire.core import CompositionError, Message, NonFiniteError
from thinwire.drivers.in_process import InProcess
from thinwire.serving.loops import Handler, run_client, run_worker
from thinwire.sync.client import FederatedClient
from thinwire.sync.federated import FederatedServer
from thinwire.sync.optimizers import SGD
from thinwire.sync.sampling import FederatedConfig
from thinwire.sync.server import GradientServer
from thinwire.sync.worker import GradientWorker


def federation(clients=2, rounds=3, **settings):
    return FederatedServer(
        {"w": torch.zeros(4), "b": torch.zeros(2)}, FederatedConfig(clients, rounds, **settings), expected=clients
    )


def train(value, calls=None):
    def trained(weights, round):
        assert calls is None or len(calls) < 500, "it trains the same round for ever"
        if calls is not None:
            calls.append(round)
        return {"w": weights["w"] + value, "b": weights["b"] + 1.0}, 1

    return trained


def in_threads(*loops):
    """Runs each to its end; what each gave or raised."""
    found = {}

    def run(place, loop):
        try:
            found[place] = loop()
        except Exception as error:
            found[place] = error

    threads = [threading.Thread(target=run, args=each, daemon=True) for each in enumerate(loops)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == len(loops), "a loop did not end"
    return [found[place] for place in range(len(loops))]


def test_a_round_closes_without_a_client_that_trained_to_nan(caplog):
    server, calls = federation(2, 3), []  # without a deadline
    handle = Handler(server)
    one, two = (FederatedClient(name, server.layers) for name in "ab")
    with caplog.at_level(logging.WARNING, "thinwire"):
        accepted = in_threads(
            lambda: run_client(InProcess(handle, "a"), one, train(1.0)),
            lambda: run_client(InProcess(handle, "b"), two, train(math.nan, calls)),
        )
    assert accepted == [3, 0] and calls == [0, 1, 2] and server.is_done
    assert [(h["accepted"], h["skipped"], h["rejected"], h["stepped"]) for h in server.history] == [(1, 1, 0, 1)] * 3
    assert server.clients["b"].strikes == 0 and not server.rejections
    assert "b: round 0 has no update: NaN or infinity in ['w']" in caplog.text
    assert "round 2: 'b' has no update" in caplog.text


def test_rounds_of_clients_that_all_give_nan_end_and_change_nothing():
    server = federation(2, 4)
    handle = Handler(server)
    clients = [FederatedClient(name, server.layers) for name in "ab"]
    loops = [lambda c=client: run_client(InProcess(handle, c.name), c, train(math.inf)) for client in clients]
    assert in_threads(*loops) == [0, 0] and server.is_done and not server.weights["w"].any()
    assert [counts["stepped"] for counts in server.history] == [0] * 4


@pytest.mark.parametrize("most", [1, 3])
def test_a_client_stops_after_several_bad_rounds_in_a_row_and_leaves(most):
    server, calls = federation(2, 9), []
    handle = Handler(server)
    one, two = (FederatedClient(name, server.layers) for name in "ab")
    accepted, error = in_threads(
        lambda: run_client(InProcess(handle, "a"), one, train(1.0)),
        lambda: run_client(InProcess(handle, "b"), two, train(math.nan, calls), max_bad_rounds=most),
    )
    assert accepted == 9 and server.is_done and len(calls) == most  # no round waited for the one that left
    assert isinstance(error, NonFiniteError) and f"in {most} rounds in a row" in str(error) and "['w']" in str(error)
    assert server.history[-1]["sampled"] == 1 and server.clients["b"].has_left


def test_a_good_round_in_between_begins_the_count_anew():
    server = federation(1, 8)
    client = FederatedClient("a", server.layers)
    give = lambda weights, round: train(1.0 if round % 3 == 2 else math.nan)(weights, round)  # noqa: E731
    assert run_client(InProcess(Handler(server), "a"), client, give, max_bad_rounds=3) == 2


def test_a_client_that_left_is_sampled_again_when_it_joins_again():
    server = federation(1, 2)
    client = FederatedClient("a", server.layers)
    client.handle_welcome(server.handle(client.join(), 0.0))
    assert server.sampled == ["a"] and server.handle(Message("leave", "a"), 0.0).kind == "bye"
    assert server.round == 0 and server.sampled == []  # a newcomer is waited for
    other = federation(1, 2)
    other.load_state_dict(server.state_dict())
    assert other.clients["a"].has_left
    client.handle_welcome(other.handle(client.join(), 0.0))
    assert other.sampled == ["a"] and not other.clients["a"].has_left and other.round == 0


def test_a_round_closes_when_the_last_client_it_waits_for_leaves():
    server = federation(2, 3)
    one, two = (FederatedClient(name, server.layers) for name in "ab")
    for client in (one, two):
        client.handle_welcome(server.handle(client.join(), 0.0))
    assert one.begin(server.handle(one.pull(), 0.0))
    assert one.settle(server.handle(one.push({n: w + 1 for n, w in one.weights.items()}, 1), 0.0)) and server.round == 0
    assert server.handle(Message("leave", "b"), 0.0).kind == "bye"
    assert server.round == 1 and server.history[0]["accepted"] == 1 and server.sampled == ["a"]
    server.handle(Message("leave", "a"), 0.0)
    assert server.round == 1 and torch.equal(server.weights["b"], torch.ones(2))


def test_a_skip_is_answered_alike_again_and_late_and_refused_from_unknown_clients():
    server = federation(2, 3)
    one, two = (FederatedClient(name, server.layers) for name in "ab")
    for client in (one, two):
        client.handle_welcome(server.handle(client.join(), 0.0))
    assert all(client.begin(server.handle(client.pull(), 0.0)) for client in (one, two))
    assert [server.handle(one.skip(), 0.0).kind for _ in range(2)] == ["noted", "noted"]
    assert server.handle(one.pull(), 0.0).kind == "wait"
    late = one.push({name: w + 1 for name, w in one.weights.items()}, 1)
    assert server.handle(late, 0.0).fields["reason"] == "no update" and server.clients["a"].strikes == 0
    server.handle(two.skip(), 0.0)
    assert server.round == 1 and server.handle(two.skip(), 0.0).kind == "noted" and server.round == 1
    assert server.answers == {}
    assert server.handle(Message("skip", "x", fields={"reason": "r"}), 0.0).fields["reason"] == "unknown"
    assert server.handle(Message("leave", "x"), 0.0).fields["reason"] == "unknown"
    for wrong in (None, 3, ["x"]):
        reply = server.handle(Message("skip", "a", 1, fields={"reason": wrong}), 0.0)
        assert reply.fields["reason"] == "fields" and "a" not in server.answers


def test_what_a_client_says_cannot_forge_lines_of_the_log(caplog):
    server = federation(1, 3)
    client = FederatedClient("a", server.layers)
    client.handle_welcome(server.handle(client.join(), 0.0))
    with caplog.at_level(logging.WARNING, "thinwire"):
        server.handle(Message("skip", "a", 0, fields={"reason": "x\nERROR all is lost\x1b[2J" + "y" * 5000}), 0.0)
    assert "\n" not in caplog.messages[-1] and "\x1b" not in caplog.text and len(caplog.messages[-1]) < 400


def test_a_worker_with_nan_gradients_says_so_and_stops(caplog):
    server = GradientServer({"w": torch.ones(4)}, SGD(0.1))
    worker, calls = GradientWorker("a", server.layers), []

    def gradient(weights, step):
        calls.append(step)
        return {"w": torch.full((4,), math.nan)}

    with caplog.at_level(logging.WARNING, "thinwire"), pytest.raises(NonFiniteError, match="4 steps in a row"):
        run_worker(InProcess(Handler(server), "a"), worker, gradient, 100, max_bad_steps=4)
    assert calls == [0, 1, 2, 3] and "a: step 3 has no update" in caplog.text
    assert server.members.present() == []  # it took its leave: no other worker waits for it


def test_a_negative_number_of_bad_rounds_is_refused_at_once():
    server = federation(1, 8)
    with pytest.raises(CompositionError, match="max_bad_rounds must not be negative, got -3"):
        run_client(InProcess(Handler(server), "a"), FederatedClient("a", server.layers), train(1.0), max_bad_rounds=-3)
    with pytest.raises(CompositionError, match="max_bad_steps must not be negative"):
        run_worker(
            InProcess(Handler(server), "a"), GradientWorker("a", server.layers), lambda w, s: w, 1, max_bad_steps=-1
        )
    assert server.clients == {}


class Broken:
    """A compressor with a faulty decoder."""

    def __init__(self, inner):
        self.inner = inner

    def decode(self, payload, spec, key):
        raise RuntimeError("a bug of ours")


def test_an_error_of_the_servers_own_decoder_is_no_strike_and_is_logged_with_its_traceback(caplog):
    server = federation(2, 3, max_strikes=1)
    one, two = (FederatedClient(name, server.layers) for name in "ab")
    for client in (one, two):
        client.handle_welcome(server.handle(client.join(), 0.0))
    assert all(client.begin(server.handle(client.pull(), 0.0)) for client in (one, two))
    sound = server.decoder.form
    server.decoder.form = sound._replace(compressor=Broken(sound.compressor))
    with caplog.at_level(logging.ERROR, "thinwire"):
        reply = server.handle(one.push({name: w + 1 for name, w in one.weights.items()}, 1), 0.0)
    assert reply.fields["reason"] == "internal" and "a bug of ours" not in reply.fields["text"]
    assert "Traceback" in caplog.text and "a bug of ours" in caplog.text and "'a'" in caplog.text
    server.decoder.form = sound
    assert two.settle(server.handle(two.push({name: w + 1 for name, w in two.weights.items()}, 1), 0.0))
    assert server.rejections == {"internal": 1} and server.round == 1
    assert server.clients["a"].strikes == 0 and server.sampled == ["a", "b"]


def test_an_error_of_the_servers_own_decoder_does_not_mark_the_worker():
    server = GradientServer({"w": torch.ones(4)}, SGD(0.1), "ef(topk(k=1))")
    worker = GradientWorker("a", server.layers, "ef(topk(k=1))")
    worker.handle_welcome(server.handle(worker.join(), 0.0))
    worker.begin(server.handle(worker.pull(), 0.0))
    server.decoder.form = server.decoder.form._replace(compressor=Broken(server.decoder.form.compressor))
    reply = server.handle(worker.push({"w": torch.arange(4.0)}), 0.0)
    assert reply.fields["reason"] == "internal" and not worker.settle(reply)
    assert server.members.all["a"].rejected == 0 and server.rejections == {"internal": 1}
    assert torch.equal(worker.uplink.exchanger.states["w"].residual, torch.arange(4.0))  # sent with the next one
