"""The threads that issue collectives: what they keep alive, and how they end."""

import gc
import threading
import weakref

import pytest

from thinwire import ClosedError
from thinwire.drivers import comm_thread
from thinwire.drivers.comm_thread import CommThread


class Connections:
    def disconnect(self):
        pass


def test_a_thread_keeps_no_connections_alive():
    """Else they would end in that thread, which the interpreter does not wait for any more."""
    connections = Connections()
    dies = weakref.ref(connections)
    thread = CommThread(disconnect=connections.disconnect)
    del connections
    gc.collect()
    assert dies() is None
    thread.close()


def test_a_thread_ends_when_its_owner_is_gone():
    thread = CommThread("thinwire-test")
    assert thread.submit(lambda: 3).result(5) == 3
    (own,) = [t for t in threading.enumerate() if t.name == "thinwire-test"]
    del thread
    gc.collect()
    own.join(5)
    assert not own.is_alive() and own not in comm_thread._running


def test_nothing_is_queued_behind_the_end():
    thread = CommThread()
    thread.close()
    thread.close()
    with pytest.raises(ClosedError, match="is closed"):
        thread.submit(lambda: None)
