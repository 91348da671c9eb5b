"""Those who must not be let in, and those who only wish to disturb: refused with a reason while the others go on."""

from __future__ import annotations

import contextlib
import random
import resource
import socket
import struct
import threading
import time
import zlib
from pathlib import Path

import pytest
import torch

from helpers.faulty_link import FaultyLink, exactly, kind_of, whole_frame
from thinwire.core import AuthenticationError, FrameError, Message, Payload
from thinwire.drivers.sockets import Connection, Listener, Secret
from thinwire.drivers.sockets.authentication import FrameAuthenticator
from thinwire.drivers.sockets.protocol import ByteCounter, FrameChannel
from thinwire.wire import decode_frame, encode_frame
from thinwire.wire.frames import HEADER_BYTES

SECRET, OTHER = Secret(b"0123456789abcdef" * 4), Secret(b"fedcba9876543210" * 4)  # 32 bytes: no time for scrypt
LOCAL = "127.0.0.1:0"
NONCES = {"handshake": 3, "nonce": "0" * 32, "generation": "1" * 32}


def ok(message):
    return Message("ok", payload=Payload((torch.full((64,), 7.0),)))


def until(true, seconds=5.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def raw(listener):
    host, _, port = listener.address.rpartition(":")
    made = socket.create_connection((host, int(port)), timeout=5)
    made.settimeout(5)
    return made


def reasons(sock):
    """What the listener said before it hung up."""
    said = []
    with contextlib.suppress(OSError):
        while data := whole_frame(sock):
            message = decode_frame(data[:-32] if data[5] else data, None)
            said.append(message.fields.get("reason", message.kind))
    return said


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


def hello(**fields):
    return bytes(encode_frame(Message("~hello", "w", fields={**NONCES, **fields})))


def huge(body_bytes):
    form = struct.pack("<4sBBHQQQQ", b"thwf", 2, 0, 16, 0, 0, 0, body_bytes)
    return form + struct.pack("<I", zlib.crc32(form))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: thinwire.example\r\nUser-Agent: someone\r\n\r\n", "magic"),
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
        (Message("push", "somebody else", 0, 1), "sender", False),
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


def test_a_full_listener_says_so():
    with Listener(LOCAL, ok, max_connections=2) as listener, contextlib.ExitStack() as stack:
        workers = [stack.enter_context(Connection(listener.address, name)) for name in "abc"]
        for worker in workers[:2]:
            worker.call(Message("push"))
        with pytest.raises(FrameError, match="full"):
            workers[2].call(Message("push"))
        workers[0].close()
        until(lambda: len(listener.peers()) == 1)
        assert workers[2].call(Message("push")).kind == "ok"


def test_what_strangers_send_before_they_are_asked_stays_outside():
    with Listener(LOCAL, ok, secret=SECRET, handshake_s=3.0) as listener, contextlib.ExitStack() as stack:
        before = resident()
        for _ in range(200):
            sock = stack.enter_context(raw(listener))
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                sock.send(hello()[:60] + bytes(400_000))
        until(lambda: listener.rejected.total() == 200)
        assert resident() - before < 16 << 20  # 200 times 256 KiB would be 50 MiB


def test_the_names_of_messages_cannot_fill_the_memory():
    with Listener(LOCAL, ok) as listener, Connection(listener.address, "w") as worker:
        for number in range(20):
            with raw(listener) as sock:
                sock.sendall(bytes(encode_frame(Message(f"{number:0240d}", "w"))))
                assert reasons(sock) == ["handshake"]
        assert set(listener.traffic.rows) == {"other", "~rejected"} and listener.traffic.rows["other"].requests == 20
        worker.call(Message("push"))
        for number in range(200):
            worker.call(Message(f"{number:0240d}"))
        rows = listener.traffic.rows
        assert rows["push"].requests == 1 and len(rows) < 80 and len(worker.traffic.rows) < 80
        assert sum(row.sent_bytes for row in rows.values()) == listener.traffic.sent


@pytest.mark.parametrize("anew", [True, False], ids=["started anew", "called again"])
def test_who_calls_again_and_again_has_one_message_before_the_handler(anew):
    going, handled = threading.Event(), []

    def slow(message):
        handled.append(message.round)
        assert going.wait(10)
        return Message("ok", round=message.round)

    with Listener(LOCAL, slow) as listener, contextlib.ExitStack() as stack:
        for number in range(1, 9):
            sock = stack.enter_context(raw(listener))
            generation = f"{number if anew else 1:032d}"
            sock.sendall(hello(generation=generation) + bytes(encode_frame(Message("~proof", "w"))))
            whole_frame(sock), whole_frame(sock)
            sock.sendall(bytes(encode_frame(Message("push", "w", number, 1 if anew else number))))
        until(lambda: handled and len(listener._tasks) == 1)  # those who were replaced are gone
        assert listener._worker._work_queue.qsize() == 0
        going.set()
        assert decode_frame(whole_frame(sock)).round == 8
        assert handled == [1, 8]


def timed(worker, count=200):
    began = time.perf_counter()
    for _ in range(count):
        worker.call(Message("push", payload=Payload((torch.ones(64),))))
    return (time.perf_counter() - began) / count


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_thousand_idle_sockets_do_not_keep_anybody_out(record_property):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 3000:
        pytest.skip(f"needs 3000 open files, this system allows {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 3000), hard))
    files, memory = open_files(), resident()
    with Listener(LOCAL, ok, secret=SECRET, handshake_s=3.0) as listener, contextlib.ExitStack() as stack:
        worker = stack.enter_context(Connection(listener.address, "early", secret=SECRET))
        timed(worker)
        alone = min(timed(worker) for _ in range(3))
        for _ in range(1000):
            stack.enter_context(raw(listener))
        gone = ("too many", "handshake too slow")  # a busy machine may take longer to come than a stranger is given
        until(lambda: sum(listener.rejected[why] for why in gone) >= 1000 - listener.max_connections, seconds=30)
        crowded = min(timed(worker) for _ in range(3))
        late = stack.enter_context(Connection(listener.address, "late", secret=SECRET))
        began = time.monotonic()
        assert late.call(Message("push")).kind == "ok" and time.monotonic() - began < 1.0
        assert len(listener._unauthenticated) <= listener.max_connections
        assert resident() - memory < 64 << 20
        record_property("alone_ms", 1e3 * alone)
        record_property("crowded_ms", 1e3 * crowded)
        print(f"an exchange takes {1e3 * alone:.2f} ms alone, {1e3 * crowded:.2f} ms among 1000 idle sockets")
        assert crowded < 2 * alone + 1e-3  # the goal is 1.1; a busy machine tells no more
        until(lambda: sum(listener.rejected[why] for why in gone) >= 1000, seconds=30)
    until(lambda: open_files() <= files)
