"""Framed, authenticated messages between a server and its workers over TCP or Unix sockets (docs/frames.md)."""

from .authentication import Secret, read_secret
from .connection import Connection
from .listener import Listener
from .tls import Tls

__all__ = ["Listener", "Connection", "Secret", "read_secret", "Tls"]
