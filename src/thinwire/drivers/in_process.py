"""A `Transport` within one process: the server's handler is called directly; for simulations and tests."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..core import ClosedError, CompositionError, FrameError, Message
from ..wire import MAX_FRAME, decode_frame, encode_frame
from .sockets.protocol import ByteCounter, check_kind, expect_success, failure_reply, with_sequence

_SERVER = "server"


class InProcess:
    """Calls `handle(message) -> Message` in the caller's thread, with `sender` as the worker's name.

    Messages are encoded as frames and decoded again. So this transport refuses what a socket refuses, the receiver
    shares no memory with the sender, and `traffic` counts what a `Connection` without a secret counts, except for its
    handshake and heartbeats.
    """

    def __init__(self, handle: Callable[[Message], Message], sender: str, *, max_frame: int = MAX_FRAME) -> None:
        if not sender:
            raise CompositionError("InProcess: sender must not be empty; use for example 'worker-3'")
        self._handle, self.sender, self.max_frame = handle, sender, max_frame
        self.traffic = ByteCounter()
        self._sequence, self._closed = 0, False
        self._calling = threading.Lock()

    def call(self, message: Message) -> Message:
        """Send a message and return the reply; sender and sequence number are filled in."""
        check_kind(message, "InProcess")
        self._check_open()
        with self._calling:
            self._check_open()
            self._sequence += 1
            received = self._transfer(with_sequence(message, self.sender, self._sequence), to_server=True)
            try:
                reply = with_sequence(self._handle(received), _SERVER, received.sequence)
                reply = self._transfer(reply, to_server=False)
            except Exception as error:
                reply = self._transfer(failure_reply(error, received, _SERVER), to_server=False)
            return expect_success(reply, message, "the server of this process")

    def close(self) -> None:
        """Refuse all later calls with ClosedError."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.sender}: this transport was closed; make a new InProcess")

    def _transfer(self, message: Message, to_server: bool) -> Message:
        frame = encode_frame(message)
        if len(frame) > self.max_frame:
            raise FrameError("too long", f"a frame of {len(frame)} bytes; max_frame is {self.max_frame}; raise it")
        counts = {"sent" if to_server else "received": len(frame)}
        self.traffic.add(**counts)
        self.traffic.add_frame(message.kind, message.payload.num_bytes, **counts)
        return decode_frame(frame, limit=self.max_frame)
