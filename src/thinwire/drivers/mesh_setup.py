"""Opening the connections of a mesh: addresses and a secret token go through the group's store."""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import struct
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from ..core import PeerLostError, World

INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"  # the variable that chooses gloo's interface chooses ours, too
_HELLO = struct.Struct("<32sI")  # the token of the group, the rank that connects
_HANDSHAKE_S = 5.0  # a connection that says nothing is dropped after this time
_LINUX_ADDRESS_REQUEST = 0x8915  # SIOCGIFADDR


def connect_all(world: World, store: Any, timeout_s: float) -> dict[int, socket.socket]:
    """One connection to each other rank: each rank connects to the lower ranks and accepts the higher ones.

    Raises:
        PeerLostError: a rank did not connect, or could not be reached, within `timeout_s`.
    """
    rank, size = world
    if size == 1:
        return {}
    store.set_timeout(timedelta(seconds=timeout_s))
    deadline = time.monotonic() + timeout_s
    address = local_address()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.bind((address, 0))
        listener.listen(size)
        if rank == 0:
            store.set("token", secrets.token_hex(16))
        store.set(f"address{rank}", f"{address} {listener.getsockname()[1]}")
        token = _read(store, "token", 0)
        connections = {lower: _connect(_read(store, f"address{lower}", lower), token, world, lower, deadline)
                       for lower in range(rank)}  # fmt: skip
        return connections | _accept_higher(listener, token, world, deadline)


def count_local_ranks(world: World, store: Any) -> int:
    """The number of ranks that run on this machine, this one included."""
    own = _machine_id()
    store.set(f"machine{world.rank}", own)
    others = [_read(store, f"machine{rank}", rank) for rank in range(world.size) if rank != world.rank]
    return 1 + others.count(own)


def _machine_id() -> str:
    """Equal in all processes of a machine, also in different network namespaces."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def local_address() -> str:
    """The address at which other ranks reach this one.

    That of the interface in GLOO_SOCKET_IFNAME; else the one from which MASTER_ADDR is reached; else that of the host's
    name; else the loopback address.
    """
    names = os.environ.get(INTERFACE_VARIABLE, "")
    if names:
        return _interface_address(names.split(",")[0].strip())
    with suppress(OSError, KeyError):
        return _source_address(os.environ["MASTER_ADDR"])
    with suppress(OSError):
        address = socket.getaddrinfo(socket.gethostname(), 0, type=socket.SOCK_STREAM)[0][4][0]
        with socket.socket(socket.AF_INET6 if ":" in str(address) else socket.AF_INET) as probe:
            probe.bind((address, 0))
        return str(address)
    return "127.0.0.1"


def _interface_address(name: str) -> str:
    """The IPv4 address of an interface; where the system cannot tell, that of the host's name or the loopback's."""
    if sys.platform == "linux":
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            request = struct.pack("256s", name.encode()[:15])
            try:
                return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _LINUX_ADDRESS_REQUEST, request)[20:24])
            except OSError as error:
                raise PeerLostError(
                    f"{INTERFACE_VARIABLE}={name}: no such interface, or it has no IPv4 address ({error.strerror}); "
                    "`ip address` lists the interfaces"
                ) from error
    return "127.0.0.1" if name.startswith("lo") else socket.gethostbyname(socket.gethostname())


def _source_address(destination: str) -> str:
    """The address of this host in packets to `destination`; nothing is sent."""
    family, _, _, _, address = socket.getaddrinfo(destination, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def _read(store: Any, key: str, rank: int) -> str:
    try:
        return str(store.get(key).decode())
    except RuntimeError as error:
        raise PeerLostError(f"rank {rank} did not join the group in time: it has not announced its address") from error


def _connect(address: str, token: str, world: World, other: int, deadline: float) -> socket.socket:
    host, port = address.rsplit(" ", 1)
    try:
        connection = socket.create_connection((host, int(port)), max(0.1, deadline - time.monotonic()))
        connection.sendall(_HELLO.pack(token.encode(), world.rank))
    except OSError as error:
        raise PeerLostError(
            f"rank {world.rank} cannot reach rank {other} at {host} port {port} ({error}); if that is the wrong "
            f"interface, set {INTERFACE_VARIABLE} on every rank"
        ) from error
    return connection


def _accept_higher(listener: socket.socket, token: str, world: World, deadline: float) -> dict[int, socket.socket]:
    """Accept one connection from each higher rank; others, which do not know the token, are closed."""
    rank, size = world
    connections: dict[int, socket.socket] = {}
    while missing := [r for r in range(rank + 1, size) if r not in connections]:
        listener.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            connection, _ = listener.accept()
        except OSError as error:
            raise PeerLostError(f"rank {rank}: rank {missing[0]} did not connect in time") from error
        connection.settimeout(_HANDSHAKE_S)
        other = _read_hello(connection, token)
        if other in missing:
            connections[other] = connection
        else:
            connection.close()
    return connections


def _read_hello(connection: socket.socket, token: str) -> int | None:
    """The rank that connects, if it knows the token."""
    hello = b""
    with suppress(OSError):
        while len(hello) < _HELLO.size and (more := connection.recv(_HELLO.size - len(hello))):
            hello += more
    if len(hello) < _HELLO.size:
        return None
    claimed, rank = _HELLO.unpack(hello)
    return int(rank) if hmac.compare_digest(claimed, token.encode()) else None
