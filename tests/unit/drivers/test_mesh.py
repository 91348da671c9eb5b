"""Connections between ranks: all bytes arrive whatever their lengths, connections without the token are refused, a lost rank is named."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from torch.distributed import HashStore

from thinwire.core import PeerLostError, World
from thinwire.drivers.mesh import LostConnection, Mesh, receive_into
from thinwire.drivers.mesh_setup import connect_all, count_local_ranks, local_address

TIMEOUT_S = 10


@pytest.fixture(autouse=True)
def loopback(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


def open_meshes(size, timeout_s=TIMEOUT_S):
    store = HashStore()
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: Mesh(World(rank, size), store, timeout_s), range(size)))


def message(source, to, length):
    return bytes((source * 7 + to * 3 + i) % 251 for i in range(min(length, 1000))) * -(-length // 1000)


@pytest.mark.parametrize("size", (2, 3))
@pytest.mark.parametrize("length", (0, 1, 1000, 300_000, 5_000_000))
def test_messages_of_any_length_arrive_whole_in_both_directions_at_once(size, length):
    meshes = open_meshes(size)

    def exchange(rank):
        others = [r for r in range(size) if r != rank]
        sent = {r: message(rank, r, length + 1000 * rank) for r in others}
        received = {r: bytearray(len(message(r, rank, length + 1000 * r))) for r in others}
        receivers = {r: receive_into(memoryview(buffer)) for r, buffer in received.items()}
        for _ in range(2):  # a second transfer begins where the first ended
            meshes[rank].transfer({r: [memoryview(data)] for r, data in sent.items()}, receivers)
            assert all(received[r] == message(r, rank, length + 1000 * r) for r in others)
            receivers = {r: receive_into(memoryview(buffer)) for r, buffer in received.items()}
        return True

    with ThreadPoolExecutor(size) as pool:
        assert all(pool.map(exchange, range(size)))
    for mesh in meshes:
        mesh.close()


@pytest.mark.parametrize(
    "first", (b"", b"\0" * 36, b"GET / HTTP/1.1\r\n\r\n" + b"\0" * 40), ids=("nothing", "zeros", "http")
)
def test_a_connection_without_the_token_is_closed_and_the_ranks_still_meet(first):
    store, ranks = HashStore(), ThreadPoolExecutor(2)
    waiting = ranks.submit(connect_all, World(0, 2), store, TIMEOUT_S)
    host, port = store.get("address0").decode().rsplit(" ", 1)
    with socket.create_connection((host, int(port))) as intruder:
        intruder.sendall(first)
        with suppress(OSError):  # the rank may have closed the connection already
            intruder.shutdown(socket.SHUT_WR)
        joined = ranks.submit(connect_all, World(1, 2), store, TIMEOUT_S)
        assert list(waiting.result()) == [1] and list(joined.result()) == [0]
        with suppress(ConnectionResetError):  # closed with data that nothing had read
            assert intruder.recv(1) == b""
    for connection in (*waiting.result().values(), *joined.result().values()):
        connection.close()
    ranks.shutdown()


def test_a_rank_that_never_comes_is_named():
    with pytest.raises(PeerLostError, match="rank 1 did not connect in time"):
        connect_all(World(0, 2), HashStore(), 0.2)
    with pytest.raises(PeerLostError, match="rank 0 did not join the group in time"):
        connect_all(World(1, 2), HashStore(), 0.2)


def test_a_silent_rank_is_named_after_the_timeout_and_a_closed_one_at_once():
    meshes = open_meshes(3, timeout_s=0.3)
    buffers = {r: bytearray(100) for r in (1, 2)}
    meshes[1].transfer({0: [memoryview(bytes(100))]}, {})
    began = time.monotonic()
    with pytest.raises(LostConnection) as silent:
        meshes[0].transfer({}, {r: receive_into(memoryview(buffer)) for r, buffer in buffers.items()})
    assert silent.value.ranks == [2] and not silent.value.closed
    assert 0.2 < time.monotonic() - began < 5
    meshes[2].close()
    with pytest.raises(LostConnection) as closed:
        meshes[0].transfer({}, {2: receive_into(memoryview(buffers[2]))})
    assert closed.value.ranks == [2] and closed.value.closed
    for mesh in meshes:
        mesh.close()


def test_disconnecting_wakes_a_thread_that_waits():
    meshes = open_meshes(2)
    timer = threading.Timer(0.2, meshes[0].disconnect)
    timer.start()
    with pytest.raises(LostConnection):
        meshes[0].transfer({}, {1: receive_into(memoryview(bytearray(10)))})
    timer.join()
    for mesh in meshes:
        mesh.close()


def test_the_interface_is_chosen_by_the_variable_of_gloo_and_a_wrong_one_is_named(monkeypatch):
    assert local_address() == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-device")
    with pytest.raises(PeerLostError, match="GLOO_SOCKET_IFNAME=no-such-device: no such interface"):
        local_address()
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert local_address() == "127.0.0.1"


def test_ranks_of_one_machine_are_counted():
    store = HashStore()
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda rank: count_local_ranks(World(rank, 3), store), range(3))) == [3, 3, 3]
