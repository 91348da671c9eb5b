"""A task trained over sockets, its server and a worker in two threads of one process."""

import queue
import sys
import threading
import time

import pytest
import torch

from faulty_link import FaultyLink
from thinwire.core import CompositionError, Message, TensorSpec
from thinwire.drivers.sockets import Connection
from thinwire.experiments import served
from thinwire.experiments.company import Company
from thinwire.experiments.served import Service, Terms
from thinwire.sync.client import FederatedClient
from thinwire.sync.optimizers import SGD
from thinwire.sync.server import Server
from thinwire.sync.serving import Handler, handler
from thinwire.sync.uplink import specs_of
from thinwire.sync.worker import Worker
from thinwire.wire import MAX_FRAME, encode_frame, frame_limit


class Serving:
    """`served.serve` in a thread of its own."""

    def __init__(self, service, terms):
        self._told, self._found = queue.Queue(), queue.Queue()
        run = lambda: self._found.put(served.serve(service, terms, "127.0.0.1:0", tell=self._told.put))  # noqa: E731
        threading.Thread(target=run, daemon=True).start()
        self.address = self._told.get(timeout=20).removeprefix("listening on ")

    def result(self, timeout=20):
        return self._found.get(timeout=timeout)


def layers_of(service):
    return specs_of({name: p.detach() for name, p in service.learner(0, 1, None).parameters.items()})


@pytest.mark.parametrize("rounds", [0, 1])
def test_the_last_to_leave_is_answered_before_the_server_hangs_up(rounds, monkeypatch):
    class Slow(Handler):
        def __call__(self, message):
            reply = super().__call__(message)
            if message.kind in ("leave", "push"):
                time.sleep(0.5)  # what it waits for has happened, and is not told yet
            return reply

    monkeypatch.setattr(served, "handler", Slow)
    service = Service("digits", rounds=rounds)
    server, began = Serving(service, Terms(workers=1)), time.monotonic()
    assert served.work(service, server.address, "worker-0", (0, 1), 2)["accepted"] == (rounds or 2)
    assert server.result()["lost"] == [] and time.monotonic() - began < 20


@pytest.mark.parametrize("rounds", [0, 2])
def test_a_deadline_passes_although_no_message_comes(rounds, monkeypatch):
    monkeypatch.setattr(served, "_LINGER_S", 0.1)
    service = Service("digits", rounds=rounds)
    server, layers = Serving(service, Terms(workers=1, deadline=0.3)), layers_of(service)
    party = (FederatedClient if rounds else Worker)("w", layers)
    with Connection(server.address, "w", **service.line(layers)) as line:
        party.welcomed(line.call(party.join()))
        assert party.begin(line.call(party.pull()))  # and says nothing more, though its line is alive
        found = server.result(timeout=8)
        assert found["updates"] == rounds and found["lost"] == ([] if rounds else ["w"])


def test_looks_and_messages_do_not_meet():
    server = Server({"w": torch.zeros(4)}, SGD(0.1))
    company = Company(server, 1.0)
    handle, going, interval = handler(company), threading.Event(), sys.getswitchinterval()

    def come():
        for number in range(400):
            handle(Worker(f"w{number}", server.layers).join())
        going.set()

    sys.setswitchinterval(1e-5)
    try:
        threading.Thread(target=come, daemon=True).start()
        while not going.is_set():
            handle.look(company.is_over)
            handle.look(lambda now: company.news())
    finally:
        sys.setswitchinterval(interval)
    assert handle.look(lambda now: len(server.members.all)) == 400


class Outage:
    """All lines break when the `at`-th frame of a kind comes, and every call fails for half a second."""

    def __init__(self, kind, at=5):
        self.kind, self.left, self.until = kind, at, 0.0

    def __call__(self, passing):
        self.left -= passing.kind == self.kind and passing.up
        if self.left == 0:
            self.left, self.until = -1, time.monotonic() + 0.5
        return None if time.monotonic() < self.until else [passing.data]


@pytest.mark.parametrize("kind", ["join", "pull", "push", "leave"])
def test_a_worker_whose_line_was_down_comes_back_and_goes_on(kind):
    service = Service("digits", exchange="ef(topk(density=0.05))")
    server = Serving(service, Terms(workers=1, deadline=20))
    with FaultyLink(server.address, Outage(kind, 5 if kind in ("pull", "push") else 1)) as link:
        accepted = served.work(service, link.address, "w", (0, 1), 20)["accepted"]
    found = server.result()
    assert found["lost"] == [] and accepted >= 19 and found["updates"] == accepted  # the cut update may be refused
    assert set(found["refused"]) <= {"unknown", "handshake cut"}


@pytest.mark.parametrize("rounds", [0, 3])
def test_who_is_lost_holds_nobody_up_and_is_named_if_it_does_not_come_back(rounds):
    service = Service("digits", rounds=rounds)
    terms = Terms(workers=2, deadline=1.0) if rounds else Terms(workers=1, bound=0, deadline=2.0)
    server, layers = Serving(service, terms), layers_of(service)
    gone = (FederatedClient if rounds else Worker)("gone", layers)
    line = Connection(server.address, "gone", **service.line(layers))
    gone.welcomed(line.call(gone.join()))
    line._hang_up()  # as kill -9 does
    accepted = served.work(service, server.address, "w", (0, 1), 5)["accepted"]
    found = server.result()
    assert found["lost"] == ["gone"] and found["updates"] == accepted == (rounds or 5)


def test_over_is_when_all_have_left_or_been_away_too_long():
    server = Server({"w": torch.zeros(4)}, SGD(0.1), workers=2, deadline=50)
    company = Company(server, 10)
    for name in ("a", "b"):
        company.handle(Worker(name, server.layers).join(), 0.0)
    company.handle(Message("leave", "a"), 1.0)
    company.lose("b", 2.0)
    assert server.members.present() == [] and not company.is_over(11.0) and company.is_over(12.5)
    assert company.handle(Message("pull", "b"), 13.0).fields["reason"] == "unknown"
    assert "b" in company.away  # it is told to join, and has not yet
    company.handle(Worker("b", server.layers).join(), 13.0)
    assert company.away == {} and not company.is_over(30.0)
    company.expire(70.0)  # alive perhaps, but it did nothing for 50 s
    assert company.away == {"b": 70.0} and not company.is_over(79.0) and company.is_over(81.0)
    company.handle(Message("leave", "b"), 71.0)
    assert company.away == {} and company.is_over(71.0)
    company.lose("b", 72.0)  # its line ended after it had left
    assert company.away == {}


def test_a_frame_may_be_as_long_as_the_model_needs():
    def line(numel, given=None):
        return Service("any", max_frame=given).line([TensorSpec("w", (numel,))])["max_frame"]

    assert line(1000) == frame_limit([TensorSpec("w", (1000,))]) and line(8 << 20) == MAX_FRAME
    resnet50 = 25_557_032
    assert 4 * resnet50 < line(resnet50) <= 1 << 30 and line(resnet50, 200 << 20) == 200 << 20
    with pytest.raises(CompositionError, match=r"needs 98 MiB, the limit is 64; give --max-frame 98"):
        line(resnet50, 64 << 20)
    with pytest.raises(CompositionError, match="give --max-frame 1145"):
        line(300_000_000)
    assert line(300_000_000, 1145 << 20) == 1145 << 20
    lines = [Service("any", max_frame=m).line([TensorSpec("w", (9,))])["fingerprint"] for m in (None, 1 << 20)]
    assert lines[0] == lines[1]  # each side may have its own


def test_refusals_of_the_listener_and_of_the_server_add_up(monkeypatch):
    service = Service("digits")
    server, layers = Serving(service, Terms(workers=1)), layers_of(service)
    with Connection(server.address, "w", **service.line(layers)) as line:
        worker = Worker("w", layers)
        worker.welcomed(line.call(worker.join()))
        assert line.call(Message("nonsense")).fields["reason"] == "kind"
        line._sequence += 1
        line._wire.send(encode_frame(Message("~ready", "w", 0, line._sequence), line._fingerprint), "~ready")
        line.call(Message("leave"))
    assert server.result()["refused"] == {"kind": 2}
