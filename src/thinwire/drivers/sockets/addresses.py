"""Socket addresses: "127.0.0.1:7000", "[::1]:7000", "unix:/run/user/1000/thinwire"."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import stat
from pathlib import Path
from typing import Any, NamedTuple

from ...core import CompositionError
from .tls import Tls

_BACKLOG = 128


class Address(NamedTuple):
    """A host and a port, or a path (then the host is empty)."""

    host: str
    port: int
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether only processes of this machine can reach it."""
        try:
            return bool(self.path) or ipaddress.ip_address(self.host).is_loopback
        except ValueError:  # a name
            return False


def parse_address(text: str) -> Address:
    """Parse HOST:PORT, [IPv6]:PORT or unix:PATH; CompositionError for anything else."""
    if text.startswith("unix:") and len(text) > 5:
        return Address("", 0, text[5:])
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise CompositionError(f"address: HOST:PORT, [IPv6]:PORT or unix:PATH expected, got {text!r}")
    host = host.removeprefix("[").removesuffix("]")
    return Address("127.0.0.1" if host == "localhost" else host, int(port))


def check_exposure(address: Address, is_authenticated: bool, tls: Tls | None, part: str) -> None:
    """Raise CompositionError if other machines can reach the address without authentication."""
    if address.path and tls is not None:
        raise CompositionError(f"{part}: {address} is a file of this machine; leave out TLS or give HOST:PORT")
    if address.is_local or is_authenticated:
        return
    half = " TLS without a CA accepts every client." if tls is not None else ""
    raise CompositionError(
        f"{part}: {address} can be reached from other machines, and peers would not be authenticated.{half} Give a "
        "secret (from a file or an environment variable), or TLS with certificate, key and CA, or use 127.0.0.1"
    )


def open_listening_socket(address: Address) -> tuple[socket.socket, Address]:
    """A listening socket and its address (port 0 picks a free one). Only this user may connect to a path."""
    if address.path:
        _remove_stale_socket(address.path)
        made = socket.socket(socket.AF_UNIX)
        os.fchmod(made.fileno(), 0o600)  # before the name exists, so that no other user can connect
        return _bind(made, address.path, address), address
    made = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _bind(made, (address.host, address.port), address)
    return made, address._replace(port=made.getsockname()[1])


def open_connected_socket(address: Address, timeout_s: float) -> socket.socket:
    """A socket that is connected to the address."""
    if not address.path:
        made = socket.create_connection((address.host, address.port), timeout_s)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(timeout_s)
    try:
        made.connect(address.path)
    except OSError:
        made.close()
        raise
    return made


def address_of_peer(sock: socket.socket) -> str:
    """Address of the other end; empty for a peer that connected by a path."""
    name = sock.getpeername()
    return str(Address(*name[:2])) if isinstance(name, tuple) else ""


def _bind(made: socket.socket, name: Any, address: Address) -> socket.socket:
    try:
        made.bind(name)
        made.listen(_BACKLOG)
    except OSError as error:
        made.close()
        raise CompositionError(
            f"Listener: cannot listen on {address}: {error}; choose another port, or 0 for any free one"
        ) from error
    made.setblocking(False)
    return made


def _remove_stale_socket(path: str) -> None:
    """Remove the socket file of a former run, unless a process still listens there."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(Path(path).stat().st_mode):
            return
        try:
            open_connected_socket(Address("", 0, path), 1.0).close()
        except ConnectionRefusedError:
            Path(path).unlink()
