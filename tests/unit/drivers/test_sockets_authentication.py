"""Without the secret a peer learns nothing, and no forged or repeated frame is handled."""

from __future__ import annotations

import random
import struct
import time
import zlib

import pytest
import torch

from helpers.faulty_link import FaultyLink, kind_of
from helpers.socket_peers import (
    LOCAL,
    OTHER,
    SECRET,
    ok,
    raw,
    reasons,
    until,
)
from thinwire.core import AuthenticationError, FrameError, Message, Payload
from thinwire.drivers.sockets import Connection, Listener
from thinwire.drivers.sockets.authentication import FrameAuthenticator
from thinwire.drivers.sockets.protocol import ByteCounter, FrameChannel
from thinwire.wire import decode_frame, encode_frame
from thinwire.wire.frames import HEADER_BYTES


def said_nothing_of_the_model(listener):
    return set(listener.traffic.rows) <= {"~hello", "~challenge", "~proof", "~rejected"}


@pytest.mark.parametrize(
    ("theirs", "mine", "reason"),
    [(OTHER, SECRET, "wrong secret"), (None, SECRET, "unauthenticated"), (SECRET, None, "sealed")],
    ids=["wrong key", "no key", "the server has none"],
)
def test_without_the_right_secret_nothing_of_the_model_is_said(theirs, mine, reason):
    with Listener(LOCAL, ok, secret=mine) as listener, Connection(listener.address, "w", secret=theirs) as worker:
        began = time.monotonic()
        with pytest.raises(AuthenticationError, match="secret"):
            worker.call(Message("push", payload=Payload((torch.ones(64),))))
        assert time.monotonic() - began < 5 and worker.connects == 1
        assert listener.rejected == {reason: 1} and said_nothing_of_the_model(listener)
        assert "push" not in worker.traffic.rows


def test_a_server_that_does_not_hold_the_secret_is_told_nothing():
    def fault(passing):  # a false server: it lets the worker in without a proof
        return [bytes(encode_frame(Message("~ready", "server")))] if passing.kind == "~rejected" else [passing.data]

    with Listener(LOCAL, ok, secret=OTHER) as listener, FaultyLink(listener.address, fault) as link:
        with Connection(link.address, "w", secret=SECRET) as worker, pytest.raises(AuthenticationError, match="prove"):
            worker.call(Message("push", payload=Payload((torch.ones(64),))))
        assert not [p for p in link.passed if p.kind == "push"]


def test_a_recorded_conversation_cannot_be_played_again():
    with Listener(LOCAL, ok, secret=SECRET) as listener, FaultyLink(listener.address) as link:
        with Connection(link.address, "w", secret=SECRET) as worker:
            worker.call(Message("push", payload=Payload((torch.ones(64),))))
        until(lambda: not listener.peers())
        handled = listener.traffic.rows["ok"].requests
        recorded = [p.data for p in link.passed if p.up]
        assert [kind_of(data) for data in recorded] == ["~hello", "~proof", "push", "~bye"]
        with raw(listener) as sock:
            sock.sendall(b"".join(recorded))
            assert reasons(sock) == ["~challenge", "forged"]
        assert listener.rejected == {"wrong secret": 1} and listener.traffic.rows["ok"].requests == handled


def changed_round(frame: bytes) -> bytes:
    """Another round, with right checksums and the tag that was."""
    body, tag = bytearray(frame[:-32]), frame[-32:]
    body[8:16] = struct.pack("<Q", 99)
    start = zlib.crc32(body[: HEADER_BYTES - 4])
    body[HEADER_BYTES - 4 : HEADER_BYTES] = struct.pack("<I", start)
    body[-4:] = struct.pack("<I", zlib.crc32(body[HEADER_BYTES:-4], start))
    assert decode_frame(body).round == 99
    return bytes(body) + tag


@pytest.mark.parametrize("attack", ["replay", "reflection", "other round", "from another connection", "without tag"])
def test_a_frame_that_is_not_the_peers_own_next_one_is_refused_and_not_handled(attack):
    rounds, stored = [], []

    def handle(message):
        rounds.append(message.round)
        return ok(message)

    def fault(passing):
        if passing.kind == "ok" and not passing.up:
            stored.append(passing.data)
        if passing.kind != "push" or not passing.up:
            return [passing.data]
        if len([p for p in link.passed if p.kind == "push"]) == 1:
            stored.append(passing.data)
            return [passing.data]
        if len([p for p in link.passed if p.kind == "push"]) > 2:
            return [passing.data]  # sent again, and left alone
        return {
            "replay": [stored[0]],
            "reflection": [stored[1]],
            "other round": [changed_round(passing.data)],
            "from another connection": [foreign[0]],
            "without tag": [bytes(encode_frame(Message("push", "w", 99, 2)))],
        }[attack]

    with Listener(LOCAL, handle, secret=SECRET) as listener:
        with FaultyLink(listener.address) as link, Connection(link.address, "w", secret=SECRET) as worker:
            worker.call(Message("push", round=1))
            worker.call(Message("push", round=2))
            foreign = [p.data for p in link.passed if p.kind == "push"][1:]
        rounds.clear()
        with FaultyLink(listener.address, fault) as link, Connection(link.address, "w", secret=SECRET) as worker:
            worker.call(Message("push", round=1))
            if attack == "without tag":  # no damage does that, so it is not sent again
                with pytest.raises(FrameError, match="unauthenticated"):
                    worker.call(Message("push", round=2))
            else:
                worker.call(Message("push", round=2))
        assert rounds == ([1] if attack == "without tag" else [1, 2])
        assert listener.rejected == {"unauthenticated" if attack == "without tag" else "forged": 1}


def test_none_of_ten_thousand_forged_frames_is_accepted():
    rng = random.Random(4)
    key = SECRET.session_key("a", "b")
    frame = encode_frame(Message("push", "w", 3, 4, payload=Payload((torch.ones(4),))), sealed=True)
    right = FrameAuthenticator(key, is_server=False).tag(frame)
    for number in range(10_000):
        tag, sent, authenticator = bytearray(right), frame, FrameAuthenticator(key, is_server=True)
        way = number % 4
        if way == 0:
            tag = bytearray(rng.randbytes(32))
        elif way == 1:
            tag[rng.randrange(32)] ^= 1 << rng.randrange(8)
        elif way == 2:  # another message under the tag of this one
            sent = encode_frame(
                Message("push", "w", rng.randrange(4, 10**6), 4, payload=Payload((torch.ones(4),))), sealed=True
            )
        else:
            authenticator = FrameAuthenticator(
                OTHER.session_key("a", "b") if number % 8 == 3 else key, is_server=number % 8 == 3
            )
        channel = FrameChannel(0, ByteCounter())
        channel.authenticator = authenticator
        reading = channel.read_frame(10_000)
        next(reading)
        reading.send(sent[:HEADER_BYTES])
        reading.send(sent[HEADER_BYTES:])
        with pytest.raises(FrameError) as caught:
            reading.send(tag)
        assert caught.value.reason == "forged" and channel.lost_framing
    channel.authenticator = FrameAuthenticator(key, is_server=True)  # and the right one is
    reading = channel.read_frame(10_000)
    next(reading)
    reading.send(frame[:HEADER_BYTES])
    reading.send(frame[HEADER_BYTES:])
    with pytest.raises(StopIteration):
        reading.send(right)
