import math

import pytest
import torch

from thinwire import IncompatibleParts, ProtocolError, TensorSpec, World, checkpoint, lockstep, parse
from thinwire.core import CompositionError, Message, Payload, derive_key
from thinwire.exchange import Exchanger
from thinwire.sync.client import FederatedClient
from thinwire.sync.federated import FederatedServer
from thinwire.sync.members import Staleness
from thinwire.sync.optimizers import SGD, Adam
from thinwire.sync.sampling import FederatedConfig
from thinwire.sync.server import GradientServer
from thinwire.sync.uplink import uplink_form
from thinwire.sync.worker import GradientWorker
from thinwire.wire import decode_frame, encode_frame, frame_limit
from thinwire_lab.published.simulated_clients import replace_unchecked
from thinwire_lab.published.simulated_workers import Schedule, run_simulation

SHAPES = {"a": (4, 3), "b": (5,)}


def start(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def gradient(worker, step, weights):
    """Of |w - t|^2/2 with a target of this worker's own and a little noise of this step's."""
    generator = torch.Generator().manual_seed(derive_key("target", worker) % 2**31)
    noise = torch.Generator().manual_seed(derive_key("noise", worker, step) % 2**31)
    return {
        n: w - torch.randn(w.shape, generator=generator) + 0.1 * torch.randn(w.shape, generator=noise)
        for n, w in weights.items()
    }


def shrinking(worker, step, weights):
    """A cheaper one, for many steps."""
    return {name: 0.1 * weight for name, weight in weights.items()}


def team(count, exchange="dense()", staleness=None, optimizer=None, down=None, **settings):
    server = GradientServer(
        start(),
        optimizer or SGD(0.1, momentum=0.5),
        exchange,
        staleness or Staleness(),
        workers=count,
        downlink_compression=down,
        **settings,
    )
    return server, [GradientWorker(f"w{i}", server.layers, exchange, down) for i in range(count)]


def even(workers, **settings):
    return Schedule({w.name: 1.0 for w in workers}, **settings)


def straggling(workers, **settings):
    return Schedule({w.name: 10.0 if i == 0 else 1.0 for i, w in enumerate(workers)}, **settings)


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def welcome(server, worker, now=0.0):
    worker.handle_welcome(server.handle(worker.join(), now))


def begin(server, worker, now=0.0):
    return worker.begin(server.handle(worker.pull(), now))


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
    """Ten lines that know no message: who is ready first pushes first, and every update counts for 1/n."""
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


@pytest.mark.parametrize("max_lead", [0, 1, 3, 7])
def test_nobody_gets_further_ahead_than_the_bound_in_ten_thousand_updates(max_lead):
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


def test_what_was_accepted_is_applied_though_everybody_goes():
    server, (one, two) = team(2, staleness=Staleness(max_lead=0))
    for worker in (one, two):
        welcome(server, worker)
    assert begin(server, one)
    one.settle(server.handle(one.push(gradient("w0", 0, one.weights)), 0.0))
    for name in ("w0", "w1"):
        server.handle(Message("leave", name), 0.0)
    assert server.applied == 1 and not server.pending_updates


def test_who_was_away_comes_back_where_the_slowest_is_and_repeats_nothing():
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


def test_who_only_waits_is_never_overdue():
    server, (one, two) = team(2, staleness=Staleness(max_lead=0), worker_timeout_s=3.0)
    welcome(server, one, 0.0)
    welcome(server, two, 100.0)
    assert begin(server, one, 100.0) and begin(server, two, 100.0)
    one.settle(server.handle(one.push(gradient("w0", 0, one.weights)), 100.5))
    two.settle(server.handle(two.push(gradient("w1", 0, two.weights)), 102.9))
    assert server.expire(105.0) == [] and begin(server, one, 105.0)
    assert server.expire(106.0) == ["w0", "w1"]


@pytest.mark.parametrize("down", ["topk(k=3)", "qsgd()", "sign()", "randomk(k=2, scaled=false)"])
def test_workers_hold_what_the_server_believes_them_to_hold(down):
    server, workers = team(3, "ef(topk(k=2))", Staleness(max_lead=2), SGD(0.05), down=down)
    run_simulation(server, workers, gradient, straggling(workers), updates=150)
    for worker in workers:
        believed = server.copies.pending.get(worker.name, server.copies.copies[worker.name])
        assert equal(believed, worker.weights)


def test_a_lost_model_is_worked_out_anew():
    server, (worker,) = team(1, down="topk(k=2)")
    welcome(server, worker)
    assert begin(server, worker)
    worker.settle(server.handle(worker.push(gradient("w0", 0, worker.weights)), 0.0))
    server.handle(worker.pull(), 0.0)  # the reply is lost
    assert begin(server, worker)
    assert equal(server.copies.pending["w0"], worker.weights)
    odd = Message("pull", "w0", fields={**worker.pull().fields, "changes_received": 9})
    assert server.handle(odd, 0.0).fields["reason"] == "out of sync"


def test_a_compressed_model_reaches_the_workers_in_the_end():
    server, (worker,) = team(1, down="topk(k=2)")
    server.weights = {name: w + 1 for name, w in server.weights.items()}
    welcome(server, worker)
    server.weights = {name: w - 3 for name, w in server.weights.items()}
    for _ in range(10):
        assert begin(server, worker)
    assert all(torch.allclose(worker.weights[n], w, atol=1e-5) for n, w in server.weights.items())


@pytest.mark.parametrize("text, name", [("vote()", "Vote"), ("powersgd(rank=1)", "PowerSGD"), ("ef(two_hop(qsgd()))", "TwoHop"), ("sketch(identity())", "SketchSum"), ("union(qsgd())", "UnionSum"), ("switch(dense())", "Switch"), ("ef21(ef21(dense()))", "EF21")])  # fmt: skip
def test_what_needs_all_ranks_is_refused_by_name(text, name):
    with pytest.raises(IncompatibleParts, match=name):
        uplink_form(parse(text))


def test_settings_that_cannot_be_are_refused_when_put_together():
    for wrong in (
        {"max_lead": -1},
        {"max_lead": 1.5},
        {"max_lead": math.nan},
        {"max_staleness": -1},
        {"max_lead": 2, "max_staleness": 3},
    ):
        with pytest.raises(CompositionError):
            Staleness(**wrong)
    for wrong in (
        {"workers": 0},
        {"worker_timeout_s": 0.0},
        {"worker_timeout_s": math.nan},
        {"workers": 3, "max_workers": 2},
    ):
        with pytest.raises(CompositionError):
            GradientServer(start(), SGD(0.1), **wrong)


def pushes(server, good):
    """Updates no honest worker sends, each with the word it is refused with."""
    nan = Payload((torch.full((12,), math.nan), good.payload.parts[1]))
    fields = dict(good.fields)
    yield "payload", good.round, fields, nan
    yield "payload", good.round, fields, Payload((torch.full((12,), math.inf), good.payload.parts[1]))
    yield "payload", good.round, fields, Payload((good.payload.parts[0][:-1], good.payload.parts[1]))
    yield "payload", good.round, fields, Payload((good.payload.parts[0].double(), good.payload.parts[1]))
    yield "payload", good.round, fields, Payload(good.payload.parts[::-1])
    yield "payload", good.round, fields, Payload(good.payload.parts[:1])
    yield "payload", good.round, fields, Payload(())
    yield "config", good.round, {**fields, "config": "0" * 16}, good.payload
    yield "config", good.round, {"version": 0}, good.payload
    for version in (-1, 1, 2**70, 0.0, math.nan, True, "0", None):
        yield "fields", good.round, {**fields, "version": version}, good.payload
    for step in (-1, 2**60, 1.0, "x", None):
        yield "round", step, fields, good.payload


def test_a_bad_update_is_refused_with_a_reason_and_training_goes_on():
    cases = 0
    server, (good, bad) = team(2)
    for worker in (good, bad):
        welcome(server, worker)
    assert begin(server, good) and begin(server, bad)
    example = bad.push(gradient("w1", 0, bad.weights))
    before = server.weights
    for step, (reason, round, fields, payload) in enumerate(pushes(server, example)):
        if round == example.round:
            round = step  # a step number of its own, or it would be a repeat
        reply = server.handle(
            replace_unchecked(Message("push", "w1"), round=round, fields=fields, payload=payload), 0.0
        )
        assert (reply.kind, reply.fields["reason"]) == ("rejected", reason), reply.fields
        assert reply.fields["text"]
        cases += 1
    assert equal(server.weights, before) and server.members.all["w1"].rejected == cases
    assert good.settle(server.handle(good.push(gradient("w0", 0, good.weights)), 0.0))
    assert server.version == 1
    for kind, sender in (("push", "nobody"), ("pull", "nobody"), ("leave", "nobody")):
        assert server.handle(Message(kind, sender, 5), 0.0).fields["reason"] == "unknown"
    assert server.handle(Message("dance", "w0"), 0.0).fields["reason"] == "kind"


def test_a_step_that_would_overflow_is_not_taken():
    server, (worker,) = team(1, optimizer=SGD(10.0))
    welcome(server, worker)
    assert begin(server, worker)
    before = server.weights
    server.handle(worker.push({name: torch.full(shape, 3e38) for name, shape in SHAPES.items()}), 0.0)
    assert equal(server.weights, before) and (server.overflowed, server.version) == (1, 0)


def test_joining_with_another_model_names_the_difference():
    server, _ = team(1)
    other = GradientWorker("x", [TensorSpec("a", (4, 3)), TensorSpec("b", (6,))])
    reply = server.handle(other.join(), 0.0)
    assert (
        reply.fields["reason"] == "config"
        and "b [5] float32" in reply.fields["text"]
        and "b [6]" in reply.fields["text"]
    )
    text = server.handle(GradientWorker("x", server.layers, "qsgd()").join(), 0.0).fields["text"]
    assert "dense()" in text and "qsgd()" in text
    for text in (b"7", b"[7]", b'{"a": 1}', b"\xff", b"", b"[" * 10**5, b'["\\ud800"]', b" " * 10**6):
        part = torch.frombuffer(bytearray(text or b" "), dtype=torch.uint8)[: len(text)]
        for payload in (Payload((part,)), Payload((part, part)), Payload((part.float(),)), Payload(())):
            reply = server.handle(Message("join", "x", fields={"last_accepted": -1}, payload=payload), 0.0)
            assert reply.fields["reason"] == "config" and encode_frame(reply)


@pytest.mark.parametrize("count", [1, 1500, 6000])
def test_joining_with_many_layers_fits_into_a_frame(count):
    layers = {f"model.layers.{i}.self_attn.q_proj.weight": torch.zeros(1) for i in range(count)}
    server, rounds = GradientServer(layers, SGD(0.1)), FederatedServer(layers, FederatedConfig(1, 1))
    for machine, party in ((server, GradientWorker("w", server.layers)), (rounds, FederatedClient("w", server.layers))):
        frame = encode_frame(party.join())
        assert len(frame) <= frame_limit(server.layers)
        party.handle_welcome(machine.handle(decode_frame(frame), 0.0))


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


def test_a_worker_is_not_stored_while_its_update_is_unanswered():
    server, (worker,) = team(1, "ef(topk(k=2))")
    welcome(server, worker)
    assert begin(server, worker)
    message = worker.push(gradient("w0", 0, worker.weights))
    with pytest.raises(ProtocolError, match="unanswered"):
        worker.state_dict()
    worker.settle(server.handle(message, 0.0))
    assert worker.state_dict()["numbers"]["last_accepted"] == 0


@pytest.mark.parametrize("staleness", [Staleness(max_lead=0), Staleness(max_lead=2), Staleness(max_staleness=20)])
@pytest.mark.parametrize("exchange, down", [("ef(topk(k=2))", "sign()"), ("ef21(qsgd())", None)])
def test_a_stored_server_and_its_workers_go_on_to_the_bit(tmp_path, staleness, exchange, down):
    def halfway():
        server, workers = team(3, exchange, staleness, Adam(0.05), down=down)
        run_simulation(server, workers, gradient, straggling(workers), updates=40)
        return server, workers

    server, workers = halfway()
    checkpoint.save(tmp_path, {"server": server.state_dict(), "workers": {w.name: w.state_dict() for w in workers}})
    run_simulation(server, workers, gradient, straggling(workers), updates=80)
    stored = checkpoint.load(tmp_path)
    other, others = team(3, exchange, staleness, Adam(0.05), down=down)
    other.load_state_dict(stored["server"])
    for worker in others:
        worker.load_state_dict(stored["workers"][worker.name])
    run_simulation(other, others, gradient, straggling(others), updates=80)
    assert equal(server.weights, other.weights)
    assert (server.version, server.staleness_counts, server.rejections) == (
        other.version,
        other.staleness_counts,
        other.rejections,
    )
