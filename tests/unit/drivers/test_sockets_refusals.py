"""Garbage, stalled handshakes and messages out of place are refused while other workers go on."""

from __future__ import annotations

import contextlib
import random
import resource
import time

import pytest

from helpers.faulty_link import exactly, kind_of, whole_frame
from helpers.socket_peers import (
    LOCAL,
    NONCES,
    SECRET,
    hello,
    huge,
    ok,
    raw,
    reasons,
    until,
)
from thinwire.core import Message
from thinwire.drivers.sockets import Connection, Listener
from thinwire.wire import decode_frame, encode_frame


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: thinwire.example\r\nUser-Agent: a browser\r\n\r\n", "magic"),
        (random.Random(1).randbytes(5000), "magic"),
        (bytes(100), "magic"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(300), "magic"),
        (hello()[:-1] + b"?", "checksum"),
        (huge(2**31), "too long"),
        (huge(2**63), "too long"),
        (huge(4000), "too long"),
        (bytes(encode_frame(Message("push", "w"))), "handshake"),
        (hello(nonce="short"), "handshake"),
        (hello(generation=[1, 2]), "handshake"),
        (hello(handshake=1), "handshake version"),
        (hello(handshake=["2"]), "handshake version"),
        (bytes(encode_frame(Message("~hello", "", fields=NONCES))), "handshake"),
        (hello() + hello(), "unauthenticated"),
        (hello() + bytes(encode_frame(Message("~proof", "w"))), "unauthenticated"),
        (bytes(encode_frame(Message("~hello", "w", fields=NONCES), sealed=True)) + bytes(32), "sealed"),
    ],
)
def test_garbage_is_refused_with_a_reason_and_honest_workers_go_on(data, reason):
    with (
        Listener(LOCAL, ok, secret=SECRET) as listener,
        Connection(listener.address, "honest", secret=SECRET) as worker,
    ):
        worker.call(Message("push"))
        with raw(listener) as sock:
            began = time.monotonic()
            sock.sendall(data)
            assert reasons(sock)[-1] == reason
        assert time.monotonic() - began < 2
        assert listener.rejected == {reason: 1}
        assert worker.call(Message("push")).kind == "ok" and worker.connects == 1


@pytest.mark.parametrize("said", [b"", b"thwf", hello()[:60], hello()], ids=["nothing", "magic", "half", "hello"])
def test_a_handshake_that_is_cut_is_counted_and_forgotten(said):
    with Listener(LOCAL, ok) as listener:
        with raw(listener) as sock:
            sock.sendall(said)
        until(lambda: listener.rejected)
        assert listener.rejected == {"handshake cut": 1} and not listener.peers()


@pytest.mark.parametrize("said", [b"", hello()[:60], hello()], ids=["idle", "half", "hello"])
def test_a_handshake_that_stalls_ends_at_its_deadline(said):
    with Listener(LOCAL, ok, handshake_s=0.3) as listener, raw(listener) as sock:
        sock.sendall(said)
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while sock.recv(4096):
                pass
        assert 0.2 < time.monotonic() - began < 2
        assert listener.rejected == {"handshake too slow": 1}


def test_a_slow_loris_cannot_stay_by_sending_a_byte_now_and_then():
    with Listener(LOCAL, ok, handshake_s=0.4, idle_timeout_s=0.3, heartbeat_s=0.1) as listener, raw(listener) as sock:
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            for byte in hello():
                sock.sendall(bytes([byte]))
                time.sleep(0.02)
        assert time.monotonic() - began < 2.0
        assert listener.rejected == {"handshake too slow": 1}


def test_a_known_peer_that_announces_much_and_sends_little_is_lost_and_costs_nothing():
    lost = []
    with (
        Listener(LOCAL, ok, idle_timeout_s=0.3, heartbeat_s=0.1, on_lost=lost.append) as listener,
        raw(listener) as sock,
    ):
        sock.sendall(hello() + bytes(encode_frame(Message("~proof", "w"))))
        assert kind_of(whole_frame(sock)) == "~challenge" and kind_of(whole_frame(sock)) == "~ready"
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        sock.sendall(huge(60 << 20) + bytes(100))
        until(lambda: lost)
        assert "silent" in str(lost[0])
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 << 10


@pytest.mark.parametrize(
    ("message", "reason", "stays"),
    [
        (Message("push", "another worker", 0, 1), "sender", False),
        (Message("~ready", "w", 0, 1), "kind", True),
        (Message("push", "w", 0, 0), "old sequence", True),
    ],
)
def test_a_known_peer_that_says_what_is_out_of_place_is_refused(message, reason, stays):
    with Listener(LOCAL, ok) as listener, raw(listener) as sock:
        sock.sendall(hello() + bytes(encode_frame(Message("~proof", "w"))))
        whole_frame(sock), whole_frame(sock)
        sock.sendall(bytes(encode_frame(message)))
        assert decode_frame(whole_frame(sock)).fields == {"reason": reason}
        assert listener.rejected == {reason: 1}
        sock.sendall(bytes(encode_frame(Message("push", "w", 0, 1))))
        assert (exactly(sock, 1) != b"") == stays
