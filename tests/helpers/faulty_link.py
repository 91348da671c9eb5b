"""A proxy between a Connection and a Listener that knows where frames begin and harms those it is told to."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import NamedTuple

from thinwire.wire.frames import HEADER_BYTES

TAG_BYTES = 32


class Passing(NamedTuple):
    """A frame on its way: `up` to the listener, or down to the peer."""

    up: bool
    kind: str
    data: bytes


def kind_of(frame: bytes) -> str:
    at = HEADER_BYTES + 4
    return frame[at : at + frame[HEADER_BYTES]].decode()


def frame_bytes(header: bytes) -> int:
    sealed, head, body = header[5], int.from_bytes(header[6:8], "little"), int.from_bytes(header[32:40], "little")
    return HEADER_BYTES + head + body + 4 + sealed * TAG_BYTES


class FaultyLink:
    """fault(passing) gives the runs of bytes that are sent on instead, or None to cut the line after sending nothing.

    passed: all frames in order, as they came.
    """

    def __init__(
        self, target: str, fault: Callable[[Passing], list[bytes] | None] = lambda passing: [passing.data]
    ) -> None:
        host, _, port = target.rpartition(":")
        self.target, self.fault = (host, int(port)), fault
        self.passed: list[Passing] = []
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> FaultyLink:
        return self

    def __exit__(self, *error: object) -> None:
        for one in (self._listening, *self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection(self.target)
                self._sockets += [near, far]
                threading.Thread(target=self._pump, args=(near, far, True), daemon=True).start()
                threading.Thread(target=self._pump, args=(far, near, False), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, up: bool) -> None:
        with contextlib.suppress(OSError):
            while data := whole_frame(source):
                with self._lock:
                    passing = Passing(up, kind_of(data), data)
                    self.passed.append(passing)
                    pieces = self.fault(passing)
                if pieces is None:
                    break
                for piece in pieces:
                    sink.sendall(piece)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def exactly(source: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = source.recv(count - len(data))
        if not piece:
            return b""
        data += piece
    return data


def whole_frame(source: socket.socket) -> bytes:
    """The next frame, or nothing at the end."""
    header = exactly(source, HEADER_BYTES)
    rest = header and exactly(source, frame_bytes(header) - HEADER_BYTES)
    return rest and header + rest
