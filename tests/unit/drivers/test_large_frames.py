"""While a large frame is hashed, encoded or parsed, the listener serves its other peers and shows that it lives."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from thinwire.core import Message, Payload
from thinwire.drivers.sockets import Connection, Listener, Secret, protocol
from thinwire.drivers.sockets.authentication import FrameAuthenticator

LOCAL = "127.0.0.1:0"
SECRET = Secret(b"0123456789abcdef" * 4)
LARGE, NOTHING = Payload((torch.zeros(3 << 18),)), Payload(())  # 3 MiB
SLOW_S = 1.0


def made_slow(monkeypatch, owner, name):
    """For large frames it takes its time, as the hash of a gigabyte does, and as that lets other threads run."""
    real, took = getattr(owner, name), []

    def slow(*arguments):
        sizes = [len(a) if isinstance(a, bytearray) else a.payload.num_bytes for a in arguments if is_large(a)]
        if sizes:
            took.append(threading.current_thread().name)
            time.sleep(SLOW_S)
        return real(*arguments)

    def is_large(argument):
        size = len(argument) if isinstance(argument, bytearray) else getattr(argument, "payload", NOTHING).num_bytes
        return size >= 1 << 20

    monkeypatch.setattr(owner, name, slow)
    return took


@pytest.mark.parametrize(
    ("owner", "name", "question", "answer"),
    [
        (protocol, "check_rest", LARGE, NOTHING),
        (protocol, "parse_rest", LARGE, NOTHING),
        (FrameAuthenticator, "verify", LARGE, NOTHING),
        (Listener, "_encode", NOTHING, LARGE),
        (FrameAuthenticator, "tag", NOTHING, LARGE),
    ],
    ids=["checksum", "parsing", "tag of a question", "encoding of an answer", "tag of an answer"],
)
def test_other_workers_are_served_while_a_large_frame_is_worked_on(owner, name, question, answer, monkeypatch):
    def handle(message):
        return Message("ok", payload=answer if message.kind == "big" else NOTHING)

    with (
        Listener(LOCAL, handle, secret=SECRET, heartbeat_s=0.05, idle_timeout_s=3.0) as listener,
        Connection(listener.address, "big", secret=SECRET) as big,
        Connection(listener.address, "small", secret=SECRET) as small,
    ):
        big.call(Message("hi")), small.call(Message("hi"))
        took = made_slow(monkeypatch, owner, name)
        thread = threading.Thread(target=lambda: big.call(Message("big", payload=question)))
        thread.start()
        while thread.is_alive() and not took:
            time.sleep(0.005)
        assert took, "the fault was not injected"
        began, asked = time.monotonic(), 0
        while asked < 5:
            small.call(Message("hi"))
            asked += 1
        assert time.monotonic() - began < 0.9 * SLOW_S, "the event loop stood still"
        thread.join()
        if name != "tag":  # while a tag is made, no other frame may be sent over that connection
            assert listener.traffic.rows["~alive"].requests >= 5
        assert big.connects == small.connects == 1 and not listener.rejected
        assert took[0].startswith("thinwire-check")


def test_a_large_frame_that_is_damaged_is_refused_as_a_small_one_is():
    with Listener(LOCAL, lambda message: message, secret=SECRET) as listener:
        worker = Connection(listener.address, "w", secret=SECRET)
        with worker:
            assert torch.equal(worker.call(Message("push", payload=LARGE)).payload.parts[0], LARGE.parts[0])
            real = worker._socket.channel.sealed_pieces

            def damaged(frame, kind, payload_bytes=0):
                pieces = real(frame, kind, payload_bytes)
                if payload_bytes:
                    pieces[0] = bytearray(pieces[0])
                    pieces[0][2 << 20] ^= 1
                return pieces

            worker._socket.channel.sealed_pieces = damaged
            assert worker.call(Message("push", payload=LARGE)).kind == "push"  # sent once more, over a new connection
        assert listener.rejected == {"checksum": 1} and worker.connects == 2
