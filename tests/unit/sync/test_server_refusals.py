"""Settings, messages and workers that a GradientServer refuses, each with a reason."""

import math

import pytest
import torch

from helpers.gradient_server import begin, equal, gradient, start, team, welcome
from thinwire import IncompatibleParts, TensorSpec, parse
from thinwire.core import CompositionError, Message, Payload
from thinwire.sync.client import FederatedClient
from thinwire.sync.federated import FederatedServer
from thinwire.sync.members import Staleness
from thinwire.sync.optimizers import SGD
from thinwire.sync.sampling import FederatedConfig
from thinwire.sync.server import GradientServer
from thinwire.sync.uplink import uplink_form
from thinwire.sync.worker import GradientWorker
from thinwire.wire import decode_frame, encode_frame, frame_limit
from thinwire_lab.published.simulated_clients import replace_unchecked


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
    for kind, sender in (("push", "unknown"), ("pull", "unknown"), ("leave", "unknown")):
        assert server.handle(Message(kind, sender, 5), 0.0).fields["reason"] == "unknown"
    assert server.handle(Message("dance", "w0"), 0.0).fields["reason"] == "kind"


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
    for machine, client in (
        (server, GradientWorker("w", server.layers)),
        (rounds, FederatedClient("w", server.layers)),
    ):
        frame = encode_frame(client.join())
        assert len(frame) <= frame_limit(server.layers)
        client.handle_welcome(machine.handle(decode_frame(frame), 0.0))
