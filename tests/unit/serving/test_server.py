"""A model that is served over sockets, its server and its workers in threads of one process."""

import sys
import threading
import time

import pytest
import torch

from helpers.faulty_link import FaultyLink
from helpers.served_models import model, serve, take_part, work
from thinwire.core import CompositionError, Message, TensorSpec
from thinwire.drivers.sockets import Connection
from thinwire.serving import Handler
from thinwire.serving import server as serving
from thinwire.serving.shared_settings import SharedSettings
from thinwire.serving.supervisor import Supervisor
from thinwire.sync.client import FederatedClient
from thinwire.sync.optimizers import SGD
from thinwire.sync.server import GradientServer
from thinwire.sync.uplink import make_specs
from thinwire.sync.worker import GradientWorker
from thinwire.wire import MAX_FRAME, encode_frame, frame_limit

LAYERS = make_specs({name: p.detach() for name, p in model().named_parameters()})


def line(rounds=0):
    return SharedSettings("join", rounds=rounds).transport_options(LAYERS)


def finished(server, timeout_s=20):
    assert server.wait(timeout_s)
    return server.report()


@pytest.mark.parametrize("rounds", [0, 1])
def test_the_last_to_leave_is_answered_before_the_server_hangs_up(rounds, monkeypatch):
    class Slow(Handler):
        def __call__(self, message):
            reply = super().__call__(message)
            if message.kind in ("leave", "push"):
                time.sleep(0.3)  # what it waits for has happened, and is not told yet
            return reply

    monkeypatch.setattr(serving, "Handler", Slow)
    with serve(rounds=rounds) as server:
        began = time.monotonic()
        accepted = take_part(server.address, rounds) if rounds else work(server.address, 2)
        assert accepted == (rounds or 2)
        assert finished(server)["lost"] == [] and time.monotonic() - began < 20


@pytest.mark.parametrize("rounds", [0, 2])
def test_a_deadline_passes_although_no_message_comes(rounds, monkeypatch):
    monkeypatch.setattr(serving, "_LEAVE_S", 0.1)
    client = (FederatedClient if rounds else GradientWorker)("w", LAYERS)
    with (
        serve(rounds=rounds, round_timeout_s=0.3) as server,
        Connection(server.address, "w", **line(rounds)) as connection,
    ):
        client.handle_welcome(connection.call(client.join()))
        assert client.begin(connection.call(client.pull()))  # and says nothing more, though its line is alive
        found = finished(server, 8)
        assert found["updates"] == rounds and found["lost"] == ([] if rounds else ["w"])


def test_looks_and_messages_do_not_meet():
    server = GradientServer({"w": torch.zeros(4)}, SGD(0.1))
    supervisor = Supervisor(server, 1.0)
    handle, going, interval = Handler(supervisor), threading.Event(), sys.getswitchinterval()

    def come():
        for number in range(400):
            handle(GradientWorker(f"w{number}", server.layers).join())
        going.set()

    sys.setswitchinterval(1e-5)
    try:
        threading.Thread(target=come, daemon=True).start()
        while not going.is_set():
            handle.inspect(supervisor.is_over)
            handle.inspect(lambda now: supervisor.status())
    finally:
        sys.setswitchinterval(interval)
    assert handle.inspect(lambda now: len(server.members.all)) == 400


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
def test_a_worker_reconnects_and_goes_on_after_its_connection_was_lost(kind):
    with serve(composition="ef(topk(k=1))", round_timeout_s=20) as server:
        with FaultyLink(server.address, Outage(kind, 5 if kind in ("pull", "push") else 1)) as link:
            accepted = work(link.address, 20, composition="ef(topk(k=1))")
        found = finished(server)
    assert found["lost"] == [] and accepted >= 19 and found["updates"] == accepted  # the cut update may be refused
    assert set(found["rejected"]) <= {"unknown", "handshake cut"}


@pytest.mark.parametrize("rounds", [0, 3])
def test_a_lost_worker_holds_no_other_up_and_is_named_if_it_does_not_come_back(rounds, caplog):
    terms = {"workers": 2, "round_timeout_s": 1.0} if rounds else {"workers": 1, "max_lead": 0, "round_timeout_s": 2.0}
    with serve(rounds=rounds, **terms) as server:
        gone = (FederatedClient if rounds else GradientWorker)("gone", LAYERS)
        connection = Connection(server.address, "gone", **line(rounds))
        gone.handle_welcome(connection.call(gone.join()))
        connection._disconnect()  # as kill -9 does
        accepted = take_part(server.address, rounds) if rounds else work(server.address, 5)
        found = finished(server)
    assert found["lost"] == ["gone"] and found["updates"] == accepted == (rounds or 5)
    assert "gone at 127.0.0.1:" in caplog.text and "closed the connection" in caplog.text


def test_over_is_when_all_have_left_or_been_away_too_long():
    server = GradientServer({"w": torch.zeros(4)}, SGD(0.1), workers=2, worker_timeout_s=50)
    supervisor = Supervisor(server, 10)
    for name in ("a", "b"):
        supervisor.handle(GradientWorker(name, server.layers).join(), 0.0)
    supervisor.handle(Message("leave", "a"), 1.0)
    supervisor.mark_lost("b", 2.0)
    assert server.members.present() == [] and not supervisor.is_over(11.0) and supervisor.is_over(12.5)
    assert supervisor.handle(Message("pull", "b"), 13.0).fields["reason"] == "unknown"
    assert "b" in supervisor.lost  # it is told to join, and has not yet
    supervisor.handle(GradientWorker("b", server.layers).join(), 13.0)
    assert supervisor.lost == {} and not supervisor.is_over(30.0)
    supervisor.expire(70.0)  # alive perhaps, but it did nothing for 50 s
    assert supervisor.lost == {"b": 70.0} and not supervisor.is_over(79.0) and supervisor.is_over(81.0)
    supervisor.handle(Message("leave", "b"), 71.0)
    assert supervisor.lost == {} and supervisor.is_over(71.0)
    supervisor.mark_lost("b", 72.0)  # its line ended after it had left
    assert supervisor.lost == {}


def test_a_frame_may_be_as_long_as_the_model_needs():
    def limit(numel, given=None):
        return SharedSettings("serve", max_frame_mib=given).transport_options([TensorSpec("w", (numel,))])["max_frame"]

    assert limit(1000) == frame_limit([TensorSpec("w", (1000,))]) and limit(8 << 20) == MAX_FRAME
    resnet50 = 25_557_032
    assert 4 * resnet50 < limit(resnet50) <= 1 << 30 and limit(resnet50, 200) == 200 << 20
    with pytest.raises(
        CompositionError, match=r"needs 98 MiB, the limit is 64 MiB; pass max_frame_mib=98 \(--max-frame-mib 98\)"
    ):
        limit(resnet50, 64)
    with pytest.raises(CompositionError, match="pass max_frame_mib=1145"):
        limit(300_000_000)
    assert limit(300_000_000, 1145) == 1145 << 20
    lines = [
        SharedSettings("serve", max_frame_mib=m).transport_options([TensorSpec("w", (9,))])["fingerprint"]
        for m in (None, 1)
    ]
    assert lines[0] == lines[1]  # each side may have its own


def test_fingerprints_are_those_of_the_first_version():
    """A worker of an older thinwire must still be let in: the words and their order are on the wire."""
    layers = [TensorSpec("w", (2, 3)), TensorSpec("b", (3,))]
    given = SharedSettings("serve", "digits", "ef(topk(density=0.05))", "sign()", 4, 7).transport_options(layers)
    assert given["fingerprint"] == 12651636498851437089
    assert list(given["settings"]) == ["task", "composition", "downlink_compression", "rounds", "seed", "layers"]


def test_refusals_of_the_listener_and_of_the_server_add_up():
    with serve() as server:
        with Connection(server.address, "w", **line()) as connection:
            worker = GradientWorker("w", LAYERS)
            worker.handle_welcome(connection.call(worker.join()))
            assert connection.call(Message("nonsense")).fields["reason"] == "kind"
            connection._sequence += 1
            frame = encode_frame(Message("~ready", "w", 0, connection._sequence), connection._fingerprint)
            connection._socket.send(frame, "~ready")
            connection.call(Message("leave"))
        assert finished(server)["rejected"] == {"kind": 2}
