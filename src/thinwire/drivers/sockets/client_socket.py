"""Client side of a connection: a blocking socket that sends and receives frames."""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import threading
import time

from ...core import AuthenticationError, Message
from ...wire import MAX_FRAME
from .addresses import Address, open_connected_socket
from .protocol import CHUNK, FrameChannel


class ClientSocket:
    """A blocking socket with frames. Two threads may send; a lock serializes access to the socket, as TLS requires.

    last_received: when the last bytes arrived, by time.monotonic().
    """

    def __init__(
        self, address: Address, context: ssl.SSLContext | None, handshake_s: float, channel: FrameChannel
    ) -> None:
        self.channel, self.idle_timeout_s, self.max_frame = channel, handshake_s, MAX_FRAME
        self._lock = threading.Lock()
        self._socket: socket.socket = open_connected_socket(address, handshake_s)
        try:
            if context is not None:
                self._socket = context.wrap_socket(self._socket, server_hostname=address.host)
        except ssl.SSLError as error:
            self._socket.close()
            raise AuthenticationError(
                f"the server at {address}: {error}; check the certificates of both sides"
            ) from error
        except BaseException:
            self._socket.close()
            raise
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self.last_received = time.monotonic()

    def send(self, frame: bytearray, kind: str, payload_bytes: int = 0) -> None:
        """Send one frame; TimeoutError if nothing of it is taken for idle_timeout_s."""
        with self._lock:
            for piece in self.channel.sealed_pieces(frame, kind, payload_bytes):
                with memoryview(piece) as view:
                    at = 0
                    while at < len(view):
                        self._socket.settimeout(self.idle_timeout_s)  # for each chunk: a thin link is slow, not idle
                        count = self._socket.send(view[at : at + CHUNK])
                        self.channel.traffic.add(sent=count)
                        at += count

    def read(self, limit: int, may_be_rejection: bool = False) -> Message:
        """The next message; FrameError if its frame is longer than `limit` or invalid."""
        reading = self.channel.read_frame(limit, may_be_rejection)
        wanted = next(reading)
        try:
            while True:
                wanted = reading.send(self._read_exactly(wanted))
        except StopIteration as done:
            message: Message = done.value
            return message

    def _read_exactly(self, wanted: int) -> bytearray:
        piece = bytearray()
        while len(piece) < wanted:
            chunk = self._receive(min(CHUNK, wanted - len(piece)))
            if not chunk:
                raise EOFError("it closed the connection")
            piece += chunk
            self.last_received = time.monotonic()
            self.channel.traffic.add(received=len(chunk))
        return piece

    def _receive(self, max_bytes: int) -> bytes:
        pending = isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()
        if not pending and not self._selector.select(self.idle_timeout_s):
            raise TimeoutError(f"no bytes for {self.idle_timeout_s:g} s")
        with self._lock:
            self._socket.settimeout(self.idle_timeout_s)
            return self._socket.recv(max_bytes)

    def interrupt(self) -> None:
        """End a `read` of another thread, as if the peer had closed the connection."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # TLS's own `shutdown` is not thread-safe

    def close(self) -> None:
        """Close the socket."""
        self._selector.close()
        self._socket.close()
