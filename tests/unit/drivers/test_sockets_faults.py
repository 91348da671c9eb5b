"""Frames that are harmed on the way: all are found, and every message is handled once, in order."""

from __future__ import annotations

import os
import random
import socket
import time
from collections import Counter

import pytest
import torch

from helpers.faulty_link import FaultyLink, Passing, kind_of, whole_frame
from thinwire.core import FrameError, Message, Payload
from thinwire.drivers.sockets import Connection, Listener, Secret, connection
from thinwire.wire import encode_frame

SECRET = Secret(b"0123456789abcdef" * 4)  # 32 bytes as they are: no time goes into scrypt
BRISK = {"idle_timeout_s": 0.3, "heartbeat_s": 0.1}


class Ledger:
    """What a server would have applied."""

    def __init__(self):
        self.rounds = []

    def __call__(self, message):
        self.rounds.append((message.round, message.payload.parts[0].tolist()))
        return Message("accepted", round=message.round, payload=message.payload)


class Harm:
    """Harms the frames of one message in a way of its own, once (or `times`), up or down; counts that it did."""

    def __init__(self, rng: random.Random):
        self.rng, self.way, self.up, self.left = rng, "", True, 0
        self.fired = Counter()
        self.held = b""

    def arm(self, way: str, up: bool, times: int = 1):
        self.way, self.up, self.left = way, up, times

    def __call__(self, passing: Passing) -> list[bytes] | None:
        if passing.up != self.up or passing.kind.startswith("~") or not self.left:
            return [passing.data]
        self.left -= 1
        self.fired[self.way] += 1
        return getattr(self, self.way)(passing.data)

    def flip(self, data):
        bit = self.rng.randrange(8 * len(data))
        return [data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]]

    def truncate(self, data):
        return [data[: self.rng.randrange(1, len(data))]]

    def cut(self, data):
        return None

    def lose(self, data):
        return []

    def duplicate(self, data):
        return [data, data]

    def reorder(self, data):
        """Two halves of a frame change places."""
        at = self.rng.randrange(1, len(data))
        return [data[at:], data[:at]]

    def delay(self, data):
        """The frame comes after the one that follows it, when it has been sent again."""
        if self.left == 1:
            self.held = data
            return []
        return [data, self.held]


QUICK = ("flip", "flip", "flip", "cut", "duplicate", "reorder")
SLOW = ("truncate", "lose", "delay")  # found by silence, which takes its time
MANY = int(os.environ.get("THINWIRE_FAULTS", "150"))  # 1000 take a minute


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(connection, "_FIRST_PAUSE_S", 0.005)


@pytest.mark.parametrize("secret", [None, SECRET], ids=["open", "secret"])
def test_harmed_frames_are_all_found_and_none_is_handled_twice(secret):
    rng = random.Random(12)
    ledger, harm = Ledger(), Harm(random.Random(13))
    expected = []
    with (
        Listener("127.0.0.1:0", ledger, secret=secret, **BRISK) as listener,
        FaultyLink(listener.address, harm) as link,
        Connection(link.address, "w", secret=secret, **BRISK) as worker,
    ):
        worker.call(Message("push", round=10**6, payload=Payload((torch.zeros(1),))))
        for round_ in range(MANY):
            way = SLOW[round_ // 10 % 3] if round_ % 10 == 0 else rng.choice(QUICK)
            harm.arm(way, rng.random() < 0.5, 2 if way == "delay" else 1)
            values = torch.full((rng.randrange(1, 30),), float(round_))
            reply = worker.call(Message("push", round=round_, payload=Payload((values,))))
            assert reply.kind == "accepted" and reply.round == round_ and torch.equal(reply.payload.parts[0], values)
            expected.append((round_, values.tolist()))
        assert ledger.rounds[1:] == expected  # once each, in order, with the right numbers
        assert sum(harm.fired.values()) >= MANY and all(harm.fired[way] > 2 for way in QUICK + SLOW), harm.fired
        assert worker.resent > MANY / 2 and listener.repeated > MANY / 20
        assert listener.rejected["checksum"] > MANY / 20
        assert (listener.rejected["forged"] > 3) == (secret is not None)


@pytest.mark.parametrize("up", [True, False], ids=["asking", "answering"])
def test_damage_that_a_second_sending_does_not_mend_is_a_frame_error(up):
    ledger, harm = Ledger(), Harm(random.Random(3))
    harm.flip = lambda data: [data[:-1] + bytes([data[-1] ^ 1])]
    with (
        Listener("127.0.0.1:0", ledger) as listener,
        FaultyLink(listener.address, harm) as link,
        Connection(link.address, "w") as worker,
    ):
        harm.arm("flip", up, times=2)
        with pytest.raises(FrameError, match=r"checksum|damaged") as caught:
            worker.call(Message("push", payload=Payload((torch.ones(3),))))
        assert (
            caught.value.reason == "checksum"
            and harm.fired["flip"] == 2
            and worker.resent == 1
            and worker.connects >= 2
        )
        assert len(ledger.rounds) == (0 if up else 1)
        assert worker.call(Message("push", payload=Payload((torch.ones(3),)))).kind == "accepted"


@pytest.mark.parametrize("kind", ["~hello", "~challenge", "~proof", "~ready"])
def test_a_handshake_that_is_cut_or_damaged_once_is_tried_again(kind):
    for harm in (
        lambda data: None,
        lambda data: [data[:-40] + bytes([data[-40] ^ 4]) + data[-39:]],
        lambda data: [data[:20]],
    ):
        fired = []

        def fault(passing, harm=harm, fired=fired):
            if passing.kind == kind and not fired:
                fired.append(kind)
                return harm(passing.data)
            return [passing.data]

        with (
            Listener("127.0.0.1:0", Ledger(), secret=SECRET, handshake_s=0.3) as listener,
            FaultyLink(listener.address, fault) as link,
            Connection(link.address, "w", secret=SECRET, handshake_s=0.3) as worker,
        ):
            assert worker.call(Message("push", payload=Payload((torch.ones(3),)))).kind == "accepted"
            assert fired == [kind] and worker.connects >= 2


def admitted(listener):
    host, _, port = listener.address.rpartition(":")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)  # little is on its way at a time, as on a thin link
    sock.settimeout(5)
    sock.connect((host, int(port)))
    fields = {"handshake": 3, "nonce": "0" * 32, "generation": "1" * 32}
    sock.sendall(encode_frame(Message("~hello", "w", fields=fields)) + encode_frame(Message("~proof", "w")))
    assert [kind_of(whole_frame(sock)) for _ in range(2)] == ["~challenge", "~ready"]
    return sock


def long_answer(message):
    return Message("model", payload=Payload((torch.zeros(160 << 10, dtype=torch.uint8),)))


def test_a_peer_that_reads_slowly_but_steadily_is_not_lost():
    with Listener("127.0.0.1:0", long_answer, **BRISK) as listener:
        listener._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        with admitted(listener) as sock:
            sock.sendall(encode_frame(Message("pull", "w", 0, 1)))
            read, began = b"", time.monotonic()
            while len(read) < 160 << 10 and (piece := sock.recv(4096)):
                read += piece
                time.sleep(0.05)  # 80 KB/s: no 64 KiB within idle_timeout_s
        assert len(read) >= 160 << 10 and time.monotonic() - began > 3 * BRISK["idle_timeout_s"]


def test_a_peer_that_reads_nothing_is_lost():
    lost = []
    with Listener("127.0.0.1:0", long_answer, on_lost=lost.append, **BRISK) as listener:
        listener._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        with admitted(listener) as sock:
            sock.sendall(encode_frame(Message("pull", "w", 0, 1)))
            end = time.monotonic() + 5
            while not lost and time.monotonic() < end:
                time.sleep(0.01)
        assert "silent" in str(lost[0]) and lost[0].peer == "w"
