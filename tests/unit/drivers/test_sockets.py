"""Listener and Connection: asking, answering, counting, and what happens when one of them goes away."""

from __future__ import annotations

import logging
import signal
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from thinwire import core
from thinwire.cli.main import EXIT_CODES
from thinwire.core import (
    AuthenticationError,
    ClosedError,
    CompositionError,
    ConfigMismatch,
    DecodeError,
    FrameError,
    Message,
    Payload,
    PeerLostError,
    ProtocolError,
)
from thinwire.drivers.sockets import Connection, Listener, Secret, Tls, read_secret

SECRET = Secret(b"0123456789abcdef" * 4)  # 32 bytes as they are: no time goes into scrypt
BRISK = {"idle_timeout_s": 0.4, "heartbeat_s": 0.1}
LOCAL = "127.0.0.1:0"


class Echo:
    """Answers with what it got, and remembers it."""

    def __init__(self):
        self.heard = []

    def __call__(self, message):
        self.heard.append((message.sender, message.sequence))
        return Message("echo", round=message.round, fields=message.fields, payload=message.payload)


def until(true, seconds=5.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


@pytest.mark.parametrize("secret", [None, SECRET], ids=["open", "secret"])
@pytest.mark.parametrize("address", [LOCAL, "[::1]:0", "localhost:0", "unix"])
def test_what_is_asked_is_answered(address, secret, tmp_path):
    address = f"unix:{tmp_path / 'socket'}" if address == "unix" else address
    big = torch.arange(300_000, dtype=torch.float32)
    with (
        Listener(address, Echo(), secret=secret) as listener,
        Connection(listener.address, "w", secret=secret) as worker,
    ):
        for round_ in range(3):
            reply = worker.call(
                Message("push", round=round_, fields={"n": round_}, payload=Payload((big, big[:3].half())))
            )
            assert (reply.kind, reply.sender, reply.round, reply.fields) == ("echo", "server", round_, {"n": round_})
            assert torch.equal(reply.payload.parts[0], big) and reply.payload.parts[1].dtype == torch.float16
        assert worker.connects == 1 and worker.resent == 0 and not listener.rejected
    assert not list(tmp_path.iterdir())


def test_handler_calls_never_overlap_and_every_worker_gets_its_own_answer():
    inside = []

    def handle(message):
        inside.append(1)
        assert len(inside) == 1
        time.sleep(0.001)
        inside.pop()
        return Message("ok", fields=message.fields)

    def work(name, wrong):
        with Connection(listener.address, name) as worker:
            wrong += [
                n
                for n in range(20)
                if worker.call(Message("push", fields={"who": [name, n]})).fields != {"who": [name, n]}
            ]

    with Listener(LOCAL, handle) as listener:
        wrong: list[int] = []
        threads = [threading.Thread(target=work, args=(f"w{n}", wrong)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong and not listener.rejected
        until(lambda: not listener.peers())


@pytest.mark.parametrize("secret", [None, SECRET], ids=["open", "secret"])
def test_both_sides_count_the_same_bytes(secret):
    payload = Payload((torch.zeros(1000),))
    with Listener(LOCAL, Echo(), secret=secret) as listener:
        with Connection(listener.address, "w", secret=secret) as worker:
            worker.call(Message("push", payload=payload))
        until(lambda: not listener.peers())
        assert worker.traffic.sent == listener.traffic.received and worker.traffic.received == listener.traffic.sent
        row = worker.traffic.rows["push"]
        assert (row.requests, row.payload_bytes) == (1, 4000) and 4000 < row.sent_bytes < 4200
        assert sum(row.sent_bytes for row in worker.traffic.rows.values()) == worker.traffic.sent
        assert set(listener.traffic.rows) == {"~hello", "~challenge", "~proof", "~ready", "push", "echo", "~bye"}


def test_an_error_of_the_handler_is_told_and_the_listener_goes_on(caplog):
    def handle(message):
        if message.kind == "odd":
            raise DecodeError("TopK: 3 parts expected, got 2")
        if message.kind == "bug":
            raise KeyError("hidden")
        return Message("huge", payload=Payload((torch.zeros(100_000),))) if message.kind == "much" else Message("ok")

    with Listener(LOCAL, handle, max_frame=10_000) as listener, Connection(listener.address, "w") as worker:
        with pytest.raises(ProtocolError, match="3 parts expected"):
            worker.call(Message("odd"))
        with (
            caplog.at_level(logging.CRITICAL, "thinwire.drivers.sockets.protocol"),
            pytest.raises(ProtocolError) as caught,
        ):
            worker.call(Message("bug"))
        assert "hidden" not in str(caught.value) and "log" in str(caught.value)
        with pytest.raises(ProtocolError, match="max_frame"):
            worker.call(Message("much"))
        assert worker.call(Message("fine")).kind == "ok" and worker.connects == 1
        assert listener.rejected == {"handler": 2, "error": 1}


def test_a_message_that_is_too_long_for_the_server_is_not_sent():
    with Listener(LOCAL, Echo(), max_frame=5000) as listener, Connection(listener.address, "w") as worker:
        with pytest.raises(FrameError, match="5000") as caught:
            worker.call(Message("push", payload=Payload((torch.zeros(2000),))))
        assert caught.value.reason == "too long"
        assert worker.traffic.sent < 1000
        assert worker.call(Message("push")).kind == "echo"


def test_a_worker_with_another_fingerprint_is_told_so():
    with Listener(LOCAL, Echo(), fingerprint=5) as listener:
        with (
            Connection(listener.address, "w", fingerprint=6) as worker,
            pytest.raises(ConfigMismatch, match=r"other settings: fingerprint: 0+6 here, 0+5 there"),
        ):
            worker.call(Message("push"))
        assert listener.rejected == {"fingerprint": 1}


def test_a_worker_that_starts_anew_counts_from_one_and_takes_its_place():
    echo = Echo()
    with Listener(LOCAL, echo) as listener:
        with Connection(listener.address, "w") as old, Connection(listener.address, "w") as new:
            old.call(Message("push"))
            old.call(Message("push"))
            new.call(Message("push"))
            assert len(listener.peers()) == 1
        assert echo.heard == [("w", 1), ("w", 2), ("w", 1)]


def test_a_long_handler_is_waited_for_because_the_server_shows_that_it_lives():
    def slow(message):
        time.sleep(1.0)
        return Message("ok")

    with Listener(LOCAL, slow, **BRISK) as listener, Connection(listener.address, "w", **BRISK) as worker:
        assert worker.call(Message("push")).kind == "ok"
        assert worker.connects == 1 and listener.traffic.rows["~alive"].requests >= 4


def test_what_is_asked_again_while_it_is_handled_is_handled_once():
    handled = []

    def slow(message):
        handled.append(message.sequence)
        time.sleep(0.6)
        return Message("ok")

    with Listener(LOCAL, slow) as listener:  # its heartbeat is slower than this worker's patience
        with Connection(listener.address, "w", idle_timeout_s=0.2, heartbeat_s=0.1) as worker:
            assert worker.call(Message("push")).kind == "ok"
            assert worker.connects > 1 and worker.resent > 0
        assert handled == [1] and listener.repeated > 0


def test_an_idle_worker_stays_connected():
    with Listener(LOCAL, Echo(), **BRISK) as listener, Connection(listener.address, "w", **BRISK) as worker:
        worker.call(Message("push"))
        time.sleep(1.0)
        assert max(listener.peers().values()) < 0.4
        worker.call(Message("push"))
        assert worker.connects == 1 and not listener.rejected


def test_an_answer_that_takes_too_long_is_an_error_even_if_the_server_lives():
    enough = threading.Event()

    def stuck(message):
        enough.wait(10)
        return Message("ok")

    with Listener(LOCAL, stuck, **BRISK) as listener:
        with (
            Connection(listener.address, "w", timeout_s=0.5, **BRISK) as worker,
            pytest.raises(PeerLostError, match="alive"),
        ):
            worker.call(Message("push"))
        enough.set()


def test_a_server_that_is_gone_is_named_with_its_address():
    with Listener(LOCAL, Echo()) as listener:
        worker = Connection(listener.address, "w", retry_s=0.5)
        worker.call(Message("push"))
    began = time.monotonic()
    with pytest.raises(PeerLostError, match=f"the server at {listener.address}"):
        worker.call(Message("push"))
    assert time.monotonic() - began < 2
    worker.close()


@pytest.mark.parametrize("answers", [True, False])
def test_closing_ends_a_call_of_another_thread_at_once(answers):
    """Whether the server is at work on it or is gone."""
    at_work, enough = threading.Event(), threading.Event()

    def handle(message):
        at_work.set()
        enough.wait(20)
        return Message("ok")

    with Listener(LOCAL, handle) as listener, ThreadPoolExecutor(1) as pool:
        worker = Connection(listener.address if answers else "127.0.0.1:9", "w", retry_s=20)
        called = pool.submit(worker.call, Message("push"))
        assert at_work.wait(10) if answers else not called.done()
        began = time.monotonic()
        worker.close()
        with pytest.raises(ClosedError, match="closed here"):
            called.result(timeout=5)
        assert time.monotonic() - began < 3
        enough.set()


def test_a_server_that_comes_back_is_found_again():
    first = Listener(LOCAL, Echo())
    with Connection(first.address, "w") as worker:
        worker.call(Message("push"))
        first.close()
        late = threading.Timer(0.4, lambda: again.append(Listener(first.address, Echo())))
        again: list[Listener] = []
        late.start()
        assert worker.call(Message("push")).kind == "echo" and worker.connects >= 2
        again[0].close()


WORKER = """
import sys, time
from thinwire.core import Message
from thinwire.drivers.sockets import Connection
worker = Connection(sys.argv[1], "worker 7", heartbeat_s=0.1)
worker.call(Message("push"))
print("asked", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("blow", "words"), [(signal.SIGKILL, "closed the connection"), (signal.SIGSTOP, "silent for 0.5 s")]
)
def test_a_worker_that_dies_or_hangs_is_noticed_and_named(blow, words):
    lost = []
    with Listener(LOCAL, Echo(), idle_timeout_s=0.5, heartbeat_s=0.1, on_lost=lost.append) as listener:
        process = subprocess.Popen([sys.executable, "-c", WORKER, listener.address], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout.readline() == "asked\n"
            time.sleep(0.7)  # longer than idle_timeout_s: heartbeats have kept it
            assert not lost
            process.send_signal(blow)
            until(lambda: lost, 2.0)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        assert words in str(lost[0]) and "worker 7 at 127.0.0.1:" in str(lost[0])
        assert len(lost) == 1 and not listener.peers()


def test_leaving_politely_is_no_loss():
    lost = []
    with Listener(LOCAL, Echo(), on_lost=lost.append) as listener:
        with Connection(listener.address, "w") as worker:
            worker.call(Message("push"))
        until(lambda: not listener.peers())
        time.sleep(0.05)
        assert not lost


@pytest.mark.parametrize(
    "address", ["0.0.0.0:0", "[::]:0", "192.0.2.7:7000", "trainer.example:7000", "[::ffff:127.0.0.1]:0"]
)
def test_other_machines_are_not_let_in_without_a_secret_or_certificates(address):
    for tls in (None, Tls(certificate="server.pem", key="server.key")):
        with pytest.raises(CompositionError, match=r"Listener: .*secret .*TLS .*127\.0\.0\.1"):
            Listener(address, Echo(), tls=tls)
    with pytest.raises(CompositionError, match=r"Connection: .*secret"):
        Connection(address, "w")


def test_a_secret_opens_other_addresses():
    with Listener("0.0.0.0:0", Echo(), secret=SECRET) as listener:
        address = listener.address.replace("0.0.0.0", "127.0.0.1")
        with Connection(address, "w", secret=SECRET) as worker:
            assert worker.call(Message("push")).kind == "echo"


@pytest.mark.parametrize("text", ["", "7000", ":7000", "host:", "host:x", "host:70000", "unix:", "host:-1", "host:１"])
def test_an_address_that_is_none_is_named(text):
    with pytest.raises(CompositionError, match="address"):
        Connection(text, "w")


def test_an_address_in_use_is_named():
    with Listener(LOCAL, Echo()) as listener, pytest.raises(CompositionError, match=listener.address):
        Listener(listener.address, Echo())


def test_a_path_is_for_its_user_alone_and_only_dead_sockets_are_replaced(tmp_path):
    path = tmp_path / "socket"
    with Listener(f"unix:{path}", Echo()) as listener:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with pytest.raises(CompositionError, match="cannot listen"):
            Listener(f"unix:{path}", Echo())
    left = subprocess.run(
        [sys.executable, "-c", f"import socket; socket.socket(socket.AF_UNIX).bind({str(path)!r})"],
        check=True,
        timeout=60,
    )
    assert left.returncode == 0 and path.exists()
    with Listener(f"unix:{path}", Echo()) as listener, Connection(listener.address, "w") as worker:
        assert worker.call(Message("push")).kind == "echo"
    path.write_text("a file of the user's")
    with pytest.raises(CompositionError, match="cannot listen"):
        Listener(f"unix:{path}", Echo())
    assert path.read_text() == "a file of the user's"


def test_settings_that_cannot_work_are_refused_at_once(tmp_path):
    for wrong in ({"sender": ""}, {"heartbeat_s": 5.0}, {"address": f"unix:{tmp_path}/x", "tls": Tls()}):
        with pytest.raises(CompositionError):
            Connection(**{"address": LOCAL, "sender": "w", **wrong})
    with pytest.raises(CompositionError, match="heartbeat_s"):
        Listener(LOCAL, Echo(), heartbeat_s=9.0)
    with Connection(LOCAL, "w") as worker, pytest.raises(ProtocolError, match="~"):
        worker.call(Message("~proof"))


def test_a_secret_comes_from_a_file_or_the_environment_and_is_never_shown(tmp_path: Path, monkeypatch):
    file = tmp_path / "secret"
    file.write_text("0123456789abcdef0123456789abcdef\n")
    with pytest.raises(CompositionError, match="chmod 600"):
        file.chmod(0o644)
        read_secret(file=file)
    file.chmod(0o600)
    monkeypatch.setenv("THINWIRE_SECRET", "0123456789abcdef0123456789abcdef")
    one, two = read_secret(file=file), read_secret(environment="THINWIRE_SECRET")
    assert one.session_key("a") == two.session_key("a") != one.session_key("b")
    assert "0123" not in repr(one) + str(one) + repr(vars(Listener))
    monkeypatch.setenv("THINWIRE_SECRET", "short")
    for wrong in ({"environment": "THINWIRE_SECRET"}, {"environment": "NO_SUCH_NAME"}, {"file": tmp_path / "none"}, {}):
        with pytest.raises(CompositionError, match="secret") as caught:
            read_secret(**wrong)
        assert "short" not in str(caught.value)


def test_exit_codes_are_those_of_errors_that_exist():
    assert {getattr(core, name): code for name, code in EXIT_CODES.items()} == {
        PeerLostError: 75, FrameError: 76, core.DecodeError: 76, core.ProtocolError: 76, core.DivergedError: 76,
        AuthenticationError: 77,
    }  # fmt: skip


def test_nothing_is_left_open_behind():
    def open_files():
        return len(list(Path("/proc/self/fd").iterdir()))

    for rehearsal in (True, False):
        before, threads = open_files(), threading.active_count()
        for _ in range(5):
            with Listener(LOCAL, Echo(), secret=SECRET) as listener:
                for name in "abc":
                    with Connection(listener.address, name, secret=SECRET) as worker:
                        worker.call(Message("push"))
                with pytest.raises(AuthenticationError), Connection(listener.address, "d") as worker:
                    worker.call(Message("push"))
        assert rehearsal or (open_files() <= before and threading.active_count() <= threads)


def test_pauses_between_calls_grow(monkeypatch):
    pauses = []
    with Connection("127.0.0.1:1", "w", retry_s=0.2) as worker, pytest.raises(PeerLostError, match=r"127\.0\.0\.1:1 "):
        monkeypatch.setattr(worker._closed, "wait", pauses.append)
        worker.call(Message("push"))
    assert pauses == [0.05, 0.1]
