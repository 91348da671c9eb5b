import math
import threading

import pytest
import torch

from thinwire import IncompatibleParts, checkpoint
from thinwire.core import CompositionError, Message, PeerLostError, ProtocolError, derive_key
from thinwire.drivers.in_process import InProcess
from thinwire.serving.loops import Handler, run_client, run_worker
from thinwire.sync.client import FederatedClient
from thinwire.sync.federated import FederatedServer
from thinwire.sync.members import Staleness
from thinwire.sync.optimizers import SGD, Adam
from thinwire.sync.robust import RobustMean, clip_norm, krum, median, trimmed_mean, weighted_mean
from thinwire.sync.sampling import FederatedConfig, sample_clients
from thinwire.sync.server import GradientServer
from thinwire.sync.worker import GradientWorker
from thinwire_lab.published.simulated_clients import CORRUPTIONS, LogisticClients, corrupt, simulate


def start():
    return {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4)}


def federation(clients=3, rounds=5, exchange="dense()", down=None, optimizer=None, **settings):
    settings = {"clients": clients, "rounds": rounds, "round_timeout_s": 10.0, **settings}
    server = FederatedServer(
        start(),
        FederatedConfig(**settings),
        exchange,
        optimizer or SGD(1.0),
        downlink_compression=down,
        expected=clients,
    )
    members = [FederatedClient(f"c{i}", server.layers, exchange, down) for i in range(clients)]
    for client in members:
        client.handle_welcome(server.handle(client.join(), 0.0))
    return server, members


def work(client, round=0):
    """Every client goes a tenth of the way to a place of its own."""
    generator = torch.Generator().manual_seed(derive_key(client.name) % 2**31)
    return {n: w + 0.1 * (torch.randn(w.shape, generator=generator) - w) for n, w in client.weights.items()}


def take_turns(server, members, rounds, now=0.0):
    for _ in range(rounds):
        for client in members:
            if client.begin(server.handle(client.pull(), now)):
                client.settle(server.handle(client.push(work(client), 7), now))


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_round_is_the_average_by_examples():
    server, members = federation(3, rounds=1)
    trained, examples = [], (1, 2, 5)
    for client, count in zip(members, examples, strict=True):
        assert client.begin(server.handle(client.pull(), 0.0))
        trained.append(work(client))
        assert client.settle(server.handle(client.push(trained[-1], count), 0.0))
    assert server.is_done and server.handle(members[0].pull(), 0.0).kind == "done"
    for name in start():
        mean = sum(t[name] * count for t, count in zip(trained, examples, strict=True)) / 8
        assert torch.allclose(server.weights[name], mean, atol=1e-6)


def test_no_client_counts_for_more_than_the_cap():
    server, members = federation(2, rounds=1, max_client_weight=10)
    for client, count in zip(members, (1_000_000, 10), strict=True):
        client.begin(server.handle(client.pull(), 0.0))
        client.settle(
            server.handle(
                client.push({n: torch.full_like(w, float(count == 10)) for n, w in client.weights.items()}, count), 0.0
            )
        )
    assert torch.allclose(server.weights["b"], torch.full((4,), 0.5))


def test_a_round_samples_clients_by_the_seed():
    names = [f"c{i}" for i in range(50)]
    drawn = [sample_clients(names, 10, 3, round) for round in range(200)]
    assert drawn == [sample_clients(names, 10, 3, round) for round in range(200)]
    assert all(len(set(some)) == 10 for some in drawn) and len({tuple(some) for some in drawn}) > 190
    often = [sum(name in some for some in drawn) for name in names]
    assert min(often) > 15 and max(often) < 70  # 40 is the mean
    assert sample_clients(names[:3], 10, 3, 0) == names[:3]


def test_a_round_ends_at_its_deadline_without_clients_that_dropped_out():
    server, (one, two, _) = federation(3)
    for client in (one, two):
        client.begin(server.handle(client.pull(), 0.0))
        client.settle(server.handle(client.push(work(client), 1), 1.0))
    late = two.pull()
    assert server.expire(9.9) == [] and server.expire(10.0) == ["c2"]
    assert server.round == 1 and server.history[0] == {
        "sampled": 3,
        "accepted": 2,
        "rejected": 0,
        "skipped": 0,
        "stepped": 1,
    }
    assert server.handle(late, 10.0).kind == "train"


def test_a_round_without_updates_ends_too_and_changes_nothing():
    server, _ = federation(3, rounds=4, min_updates=2)
    for round in range(4):
        server.expire(10.0 * (round + 1))
    assert server.is_done and equal(server.weights, start())
    assert [counts["stepped"] for counts in server.history] == [0, 0, 0, 0]


def test_an_accepted_update_sent_again_is_accepted_again_and_counts_once():
    server, members = federation(2)
    for client in members:
        client.begin(server.handle(client.pull(), 0.0))
    messages = [client.push(work(client), 1) for client in members]
    assert [server.handle(messages[i], 0.0).kind for i in (0, 0, 1, 1, 0)] == ["accepted"] * 5
    assert server.round == 1 and server.history[0]["accepted"] == 2


@pytest.mark.parametrize(
    "exchange", ["dense()", "ef(topk(k=2))", "ef21(topk(k=2))", "qsgd()", "ef(sign())", "ef(randomk(k=2))"]
)
def test_of_two_thousand_malformed_updates_all_are_refused_and_the_model_stays_finite(exchange):
    server, (good, bad) = federation(2, rounds=10**6, exchange=exchange)
    seen = 0
    for turn in range(2_000 if exchange == "dense()" else 150):
        for client in (good, bad):
            assert client.begin(server.handle(client.pull(), 0.0))
        strikes, round = server.clients["c1"].strikes, server.round
        wrong = corrupt(bad.push(work(bad), 5), derive_key("spoil", turn))
        reply = server.handle(wrong, 0.0)
        assert reply.kind == "rejected" and reply.fields["reason"] and reply.fields["text"], reply
        bad.settle(reply)
        seen += 1
        assert server.clients["c1"].strikes == strikes + 1
        assert good.settle(server.handle(good.push(work(good), 5), 0.0))
        server.expire(1e9 if server.round == round else 0.0)
        server.round_start = 0.0
        assert server.round == round + 1 and server.history[-1]["accepted"] == 1
    assert all(w.isfinite().all() for w in server.weights.values()) and sum(server.rejections.values()) == seen


@pytest.mark.parametrize("how", CORRUPTIONS)
def test_each_way_of_spoiling_an_update_is_refused(how):
    server, (client,) = federation(1)
    client.begin(server.handle(client.pull(), 0.0))
    reply = server.handle(CORRUPTIONS[how](client.push(work(client), 5), derive_key(how)), 0.0)
    assert reply.kind == "rejected" and equal(server.weights, start())


def test_a_client_that_was_refused_too_often_is_sampled_no_more():
    server, members = federation(3, rounds=20, max_strikes=2)
    for _ in range(2):
        for client in members:
            client.begin(server.handle(client.pull(), 0.0))
            message = client.push(work(client), 0 if client.name == "c1" else 3)
            client.settle(server.handle(message, 0.0))
    assert server.sampled == ["c0", "c2"] and server.clients["c1"].last_reason == "weight"


@pytest.mark.parametrize("most", [1, 2])
def test_the_last_strike_counts_for_the_next_round_and_a_round_without_clients_waits_for_a_new_one(most):
    server, (bad,) = federation(1, rounds=9, max_strikes=most, round_timeout_s=math.inf)
    for _ in range(most):
        assert bad.begin(server.handle(bad.pull(), 0.0))
        bad.settle(server.handle(bad.push(work(bad), 0), 0.0))
    assert server.round == most and server.sampled == []
    bad.handle_welcome(server.handle(bad.join(), 1.0))
    assert not bad.begin(server.handle(bad.pull(), 1.0)) and server.round == most
    honest = FederatedClient("d", server.layers)
    honest.handle_welcome(server.handle(honest.join(), 2.0))
    take_turns(server, [bad, honest], 9, 3.0)
    assert server.is_done and sum(counts["accepted"] for counts in server.history) == 9 - most


def test_unknown_and_unsampled_clients_are_refused():
    server, _ = federation(1)
    other = FederatedClient("late", server.layers)
    assert server.handle(other.pull(), 0.0).fields["reason"] == "unknown"
    other.handle_welcome(server.handle(other.join(), 0.0))
    assert server.handle(other.pull(), 0.0).kind == "wait"
    reply = server.handle(Message("push", "late", 0, fields={"config": server.digest, "examples": 1}), 0.0)
    assert reply.fields["reason"] == "sample"
    assert server.handle(Message("dance", "c0"), 0.0).fields["reason"] == "kind"


@pytest.mark.parametrize("down", ["topk(k=2)", "qsgd()", "sign()"])
def test_clients_that_missed_rounds_hold_the_servers_copy_to_the_bit(down):
    server, (one, two) = federation(2, rounds=30, exchange="ef(topk(k=2))", down=down)
    for round in range(20):
        for client in (one, two) if round % 3 == 0 else (one,):
            assert client.begin(server.handle(client.pull(), 0.0))
            assert equal(client.weights, server.copy.model)
            client.settle(server.handle(client.push(work(client), 1), 0.0))
        if round % 3:
            server.expire(1e9)
            server.round_start = 0.0


def test_a_client_that_missed_too_many_rounds_for_one_frame_gets_the_model_whole():
    layers = {f"layer{i}": torch.zeros(2000) for i in range(200)}
    server = FederatedServer(layers, FederatedConfig(1, 1000), expected=2, downlink_compression="topk(density=0.001)")
    each = sum(server.copy.codec.num_parts)
    for round in range(1, 20_000 // each + 2):
        server.copy.advance({n: torch.full_like(w, float(round)) for n, w in layers.items()}, round)
    behind = {have: server.copy.payload_since(have) for have in (0, 1)}
    assert behind[0][0] and len(behind[0][1].parts) == 200
    assert not behind[1][0] and 65_000 > len(behind[1][1].parts) > 20_000 - each


def test_the_shared_copy_follows_its_recursion():
    server, members = federation(2, rounds=6, down="topk(k=1)")
    copy = start()
    for round in range(1, 6):
        take_turns(server, members, 1)
        payload = server.copy.codec.encode(server.weights, copy, round)
        copy = server.copy.codec.apply(copy, payload, round)
        assert equal(copy, server.copy.model)


def test_fedavg_with_one_client_and_rate_one_is_local_training():
    server, (client,) = federation(1, rounds=10)
    take_turns(server, [client], 10)
    alone = FederatedClient("c0", server.layers)
    alone.weights = start()
    for _ in range(10):
        alone.weights = work(alone)
    assert all(torch.allclose(server.weights[name], alone.weights[name], atol=1e-6) for name in start())


@pytest.mark.parametrize("optimizer", [SGD(1.0, momentum=0.9), Adam(0.01, eps=1e-3, bias_correction=False)])
@pytest.mark.parametrize("exchange, down", [("ef(topk(k=2))", "sign()"), ("ef21(qsgd())", None)])
def test_a_stored_federation_goes_on_to_the_bit(tmp_path, optimizer, exchange, down):
    server, members = federation(3, rounds=20, exchange=exchange, down=down, optimizer=optimizer)
    take_turns(server, members, 5)
    members[0].begin(server.handle(members[0].pull(), 0.0))  # and in the middle of a round
    members[0].settle(server.handle(members[0].push(work(members[0]), 3), 0.0))
    checkpoint.save(tmp_path, {"server": server.state_dict(), "clients": {c.name: c.state_dict() for c in members}})
    take_turns(server, members, 5)
    stored = checkpoint.load(tmp_path)
    other, others = federation(3, rounds=20, exchange=exchange, down=down, optimizer=optimizer)
    other.load_state_dict(stored["server"])
    for client in others:
        client.load_state_dict(stored["clients"][client.name])
        client.handle_welcome(other.handle(client.join(), 0.0))
    take_turns(other, others, 5)
    assert equal(server.weights, other.weights) and server.history == other.history


def test_fifty_rounds_complete_though_clients_drop_out_and_some_are_malformed():
    outcome = simulate(clients=64, dropout=0.2, malformed=0.05, rounds=50, sampled=16)
    assert outcome.rounds == outcome.stepped == 50 and outcome.finite
    assert outcome.dropped > 80 and outcome.malformed > 20 and sum(outcome.refusals.values()) == outcome.malformed
    assert outcome.loss_after < 0.7 * outcome.loss_before
    assert outcome == simulate(clients=64, dropout=0.2, malformed=0.05, rounds=50, sampled=16)


ROWS = torch.randn(9, 5, generator=torch.Generator().manual_seed(0))


def test_robust_rules_stay_with_the_honest_and_the_mean_does_not():
    honest, liars = ROWS[:7], torch.full((2, 5), 1e6)
    rows, middle = torch.cat([honest, liars]), honest.mean(0)
    for rule in (RobustMean("krum", 2), RobustMean("trimmed", 2), RobustMean("median"), RobustMean("clip", clip=3.0)):
        assert (rule.combine(rows, [1.0] * 9) - middle).norm() < 4, rule
    assert (RobustMean().combine(rows, [1.0] * 9) - middle).norm() > 1e5


def test_robust_rules_are_what_their_names_say():
    assert torch.equal(median(ROWS), ROWS.median(0).values)
    assert torch.allclose(median(ROWS[:4]), ROWS[:4].quantile(0.5, dim=0))
    assert torch.allclose(trimmed_mean(ROWS, 0), ROWS.mean(0), atol=1e-6)
    assert any(torch.equal(krum(ROWS, 1), row) for row in ROWS)
    assert torch.allclose(weighted_mean(iter(ROWS), [2.0] * 9), ROWS.mean(0), atol=1e-6)
    assert torch.allclose(clip_norm(ROWS[0] * 1e30, 2.0).norm(), torch.tensor(2.0))
    assert torch.equal(clip_norm(ROWS[0], 1e9), ROWS[0]) and torch.equal(clip_norm(torch.zeros(3), 1.0), torch.zeros(3))
    assert clip_norm(torch.full((5,), 3e38), 1.0).isfinite().all()


def test_rules_refuse_what_they_would_make_nonsense_of():
    for text in ("ef(topk(k=2))", "randomk(k=2)", "projection(rank=1)"):
        for rule in (RobustMean("median"), RobustMean("trimmed", 1)):
            with pytest.raises(IncompatibleParts, match="coordinate"):
                FederatedServer(start(), FederatedConfig(5, 1, aggregate=rule), text)
    with pytest.raises(IncompatibleParts, match="EF21"):
        FederatedServer(start(), FederatedConfig(5, 1, aggregate=RobustMean("krum", 1)), "ef21(qsgd())")
    for wrong in (
        {"method": "vote"},
        {"num_byzantine": -1},
        {"clip": 2.0},
        {"method": "clip"},
        {"method": "clip", "clip": math.nan},
    ):
        with pytest.raises(CompositionError):
            RobustMean(**wrong)
    for wrong in (
        {"clients": 0},
        {"min_updates": 9},
        {"round_timeout_s": 0.0},
        {"max_client_weight": 0},
        {"aggregate": RobustMean("krum", 1), "clients": 4},
    ):
        with pytest.raises(CompositionError):
            FederatedConfig(**{"clients": 5, "rounds": 1, **wrong})


def test_workers_in_threads_train_over_a_channel_in_memory():
    server = GradientServer(start(), SGD(0.2), "ef(topk(k=3))", Staleness(max_lead=1), workers=3, worker_timeout_s=5.0)
    handle = Handler(server)
    workers = [GradientWorker(f"w{i}", server.layers, "ef(topk(k=3))") for i in range(3)]
    transports = [InProcess(handle, worker.name) for worker in workers]
    threads = [
        threading.Thread(target=run_worker, args=(*each, lambda weights, step: weights, 40))
        for each in zip(transports, workers, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert server.applied == 120 == sum(w.accepted for w in workers) and server.members.present() == []
    assert max(server.lead_counts) <= 1
    assert all(w.norm() < start()[name].norm() / 10 for name, w in server.weights.items())


@pytest.mark.parametrize("exchange", ["ef(topk(k=3))", "ef21(topk(k=3))"])
@pytest.mark.parametrize("arrives", [True, False])
def test_a_loop_that_was_cut_off_asks_what_became_of_its_update(exchange, arrives):
    server = GradientServer(start(), SGD(0.2), exchange, workers=1)
    worker, handle, pushes = GradientWorker("w", server.layers, exchange), Handler(server), []

    def cut_off(message):
        pushes.append(message.kind)
        lost = pushes.count("push") == 5
        reply = handle(message) if arrives or not lost else None
        if lost:
            raise PeerLostError("the line is cut")
        return reply

    with pytest.raises(ProtocolError):
        run_worker(InProcess(cut_off, "w"), worker, lambda weights, step: weights, 10)
    run_worker(InProcess(handle, "w"), worker, lambda weights, step: weights, 5)
    whole, other = GradientServer(start(), SGD(0.2), exchange, workers=1), GradientWorker("w", server.layers, exchange)
    run_worker(InProcess(Handler(whole), "w"), other, lambda weights, step: weights, 10)
    assert equal(server.weights, whole.weights) and server.applied == 10


def test_clients_in_threads_take_part_until_the_server_is_done():
    task = LogisticClients(3, 0)
    server = FederatedServer(
        task.start(), FederatedConfig(clients=2, rounds=15, round_timeout_s=5.0), "ef(topk(k=3))", expected=3
    )
    handle, counts = Handler(server), []

    def client(place):
        me = FederatedClient(f"c{place}", server.layers, "ef(topk(k=3))")
        train = lambda weights, round: (task.trained(dict(weights), place, 3), task.examples(place))  # noqa: E731
        counts.append(run_client(InProcess(handle, me.name), me, train, pause=lambda: threading.Event().wait(0.001)))

    threads = [threading.Thread(target=client, args=(place,)) for place in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sum(counts) == 30 and server.is_done and not server.rejections
