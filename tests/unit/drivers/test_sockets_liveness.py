"""Heartbeats, timeouts and reconnects: a slow peer is waited for, a lost one is named."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from helpers.socket_peers import LOCAL, Echo, until
from thinwire.core import (
    ClosedError,
    Message,
    PeerLostError,
)
from thinwire.drivers.sockets import Connection, Listener

BRISK = {"idle_timeout_s": 0.4, "heartbeat_s": 0.1}


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


def test_pauses_between_calls_grow(monkeypatch):
    pauses = []
    with Connection("127.0.0.1:1", "w", retry_s=0.2) as worker, pytest.raises(PeerLostError, match=r"127\.0\.0\.1:1 "):
        monkeypatch.setattr(worker._closed, "wait", pauses.append)
        worker.call(Message("push"))
    assert pauses == [0.05, 0.1]
