"""A task trained over sockets, its server and a worker in two threads of one process."""

import threading
import time

import pytest

from thinwire.experiments import served
from thinwire.experiments.served import Service, Terms


@pytest.mark.parametrize("rounds", [0, 1])
def test_the_last_to_leave_is_answered_before_the_server_hangs_up(rounds, monkeypatch):
    handler = served.handler

    def slow(machine):
        handle = handler(machine)

        def handled(message):
            reply = handle(message)
            if message.kind in ("leave", "push"):
                time.sleep(0.5)  # what it waits for has happened, and is not told yet
            return reply

        return handled

    monkeypatch.setattr(served, "handler", slow)
    service, addresses, came = Service("digits", rounds=rounds), [], {}

    def tell(text):
        if text.startswith("listening on "):
            addresses.append(text.removeprefix("listening on "))

    server = threading.Thread(
        target=lambda: came.update(served.serve(service, Terms(workers=1), "127.0.0.1:0", tell=tell)), daemon=True
    )
    server.start()
    while not addresses:
        time.sleep(0.01)
    began = time.monotonic()
    assert served.work(service, addresses[0], "worker-0", (0, 1), 2)["accepted"] == (rounds or 2)
    server.join(timeout=20)
    assert not server.is_alive() and came["lost"] == [] and time.monotonic() - began < 20
