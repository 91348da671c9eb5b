"""Listener and Connection: calls and replies, bytes, errors of the handler, open files."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import pytest
import torch

from helpers.socket_peers import LOCAL, SECRET, Echo, until
from thinwire import core
from thinwire.cli.main import EXIT_CODES
from thinwire.core import (
    AuthenticationError,
    ConfigMismatch,
    DecodeError,
    FrameError,
    Message,
    Payload,
    PeerLostError,
    ProtocolError,
)
from thinwire.drivers.sockets import Connection, Listener


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
                if worker.call(Message("push", fields={"call": [name, n]})).fields != {"call": [name, n]}
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
        assert echo.received == [("w", 1), ("w", 2), ("w", 1)]


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
