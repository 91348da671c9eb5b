"""A worker's socket, blocking, with frames on it."""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import threading
import time

from ...core import AuthenticationError, Message
from ...wire import MAX_FRAME
from .addresses import Address, connected_socket
from .talking import CHUNK, Line


class Wire:
    """A blocking socket that speaks frames; two threads may send. One at a time touches it, for TLS's sake."""

    def __init__(self, where: Address, context: ssl.SSLContext | None, handshake_s: float, line: Line) -> None:
        self.line, self.silence_s, self.max_frame = line, handshake_s, MAX_FRAME
        self._lock = threading.Lock()
        self._socket: socket.socket = connected_socket(where, handshake_s)
        try:
            if context is not None:
                self._socket = context.wrap_socket(self._socket, server_hostname=where.host)
        except ssl.SSLError as error:
            self._socket.close()
            raise AuthenticationError(
                f"the server at {where}: {error}; look at the certificates of both sides"
            ) from error
        except BaseException:
            self._socket.close()
            raise
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self.heard = time.monotonic()

    def send(self, frame: bytearray, kind: str, payload_bytes: int = 0) -> None:
        with self._lock:
            for piece in self.line.outgoing(frame, kind, payload_bytes):
                with memoryview(piece) as view:
                    at = 0
                    while at < len(view):
                        self._socket.settimeout(self.silence_s)  # for each chunk: a thin link is slow, not silent
                        count = self._socket.send(view[at : at + CHUNK])
                        self.line.traffic.add(sent=count)
                        at += count

    def read(self, limit: int, may_be_refusal: bool = False) -> Message:
        reading = self.line.incoming(limit, may_be_refusal)
        wanted = next(reading)
        try:
            while True:
                wanted = reading.send(self._exactly(wanted))
        except StopIteration as done:
            message: Message = done.value
            return message

    def _exactly(self, wanted: int) -> bytearray:
        piece = bytearray()
        while len(piece) < wanted:
            chunk = self._some(min(CHUNK, wanted - len(piece)))
            if not chunk:
                raise EOFError("it closed the connection")
            piece += chunk
            self.heard = time.monotonic()
            self.line.traffic.add(received=len(chunk))
        return piece

    def _some(self, most: int) -> bytes:
        pending = isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()
        if not pending and not self._selector.select(self.silence_s):
            raise TimeoutError(f"silent for {self.silence_s:g} s")
        with self._lock:
            self._socket.settimeout(self.silence_s)
            return self._socket.recv(most)

    def interrupt(self) -> None:
        """End a `read` of another thread, as if the peer had hung up."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # TLS's own `shutdown` is not for two threads

    def close(self) -> None:
        self._selector.close()
        self._socket.close()
