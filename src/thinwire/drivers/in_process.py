"""A server and its workers in one process: a `Transport` without a socket, for simulations and tests."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..core import ClosedError, CompositionError, FrameError, Message
from ..wire import MAX_FRAME, decode_frame, encode_frame
from .sockets.talking import Crossings, check_kind, expect_success, failure, numbered

_SERVER = "server"


class InProcess:
    """Calls `handle(message) -> Message` in the thread of the caller, under the name `sender`.

    Messages become frames and are read back, so that what a socket would refuse is refused here, what arrives shares
    no memory with what was sent, and `traffic` counts as a `Connection` without a secret does; only that has a
    handshake and heartbeats, too.
    """

    def __init__(self, handle: Callable[[Message], Message], sender: str, *, max_frame: int = MAX_FRAME) -> None:
        if not sender:
            raise CompositionError("InProcess: the sender has no name; 'worker 3' would do")
        self._handle, self.sender, self.max_frame = handle, sender, max_frame
        self.traffic = Crossings()
        self._sequence, self._closed = 0, False
        self._calling = threading.Lock()

    def call(self, message: Message) -> Message:
        check_kind(message, "InProcess")
        self._check_open()
        with self._calling:
            self._check_open()
            self._sequence += 1
            arrived = self._carry(numbered(message, self.sender, self._sequence), up=True)
            try:
                reply = self._carry(numbered(self._handle(arrived), _SERVER, arrived.sequence), up=False)
            except Exception as error:
                reply = self._carry(failure(error, arrived, _SERVER), up=False)
            return expect_success(reply, message, "the server of this process")

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.sender}: the transport to the server of this process was closed; make another")

    def _carry(self, message: Message, up: bool) -> Message:
        frame = encode_frame(message)
        if len(frame) > self.max_frame:
            raise FrameError("too long", f"{len(frame)} bytes; max_frame is {self.max_frame}; raise it")
        counts = {"sent" if up else "received": len(frame)}
        self.traffic.add(**counts)
        self.traffic.frame(message.kind, message.payload.num_bytes, **counts)
        return decode_frame(frame, limit=self.max_frame)
