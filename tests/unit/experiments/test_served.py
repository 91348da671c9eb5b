"""A task trained over sockets, its server and a worker in two threads of one process."""

import queue
import sys
import threading
import time

import pytest
import torch

from thinwire.core import Message
from thinwire.drivers.sockets import Connection
from thinwire.experiments import served
from thinwire.experiments.served import Service, Terms
from thinwire.sync.client import FederatedClient
from thinwire.sync.optimizers import SGD
from thinwire.sync.server import Server
from thinwire.sync.serving import Handler, handler
from thinwire.sync.uplink import specs_of
from thinwire.sync.worker import Worker


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
        party.welcomed(line.ask(party.join()))
        assert party.begin(line.ask(party.pull()))  # and says nothing more, though its line is alive
        assert server.result(timeout=8)["updates"] == rounds


def test_looks_and_messages_do_not_meet():
    server = Server({"w": torch.zeros(4)}, SGD(0.1), most_workers=3000)
    handle, going, interval = handler(server), threading.Event(), sys.getswitchinterval()

    def come():
        for number in range(1500):
            handle(Message("join", f"w{number}", fields={"form": server.form, "settled": -1}))
        going.set()

    sys.setswitchinterval(1e-5)
    try:
        threading.Thread(target=come, daemon=True).start()
        while not going.is_set():
            handle.look(lambda now: served._over(server))
            handle.look(lambda now: served._news(server))
    finally:
        sys.setswitchinterval(interval)
    assert handle.look(lambda now: len(server.members.all)) == 1500
