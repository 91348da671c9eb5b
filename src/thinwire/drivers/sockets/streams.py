"""A listener's end of one socket: it holds no more than it was told to, and knows whether anything is taken."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import struct
import termios
from collections.abc import Callable
from typing import Any


class Stream(asyncio.BufferedProtocol):
    """Bytes in, as they are asked for; bytes out, as they are taken.

    room: bytes that are taken from the system before somebody asks for them. asyncio's own streams take 256 KiB at
    once, which is too much to hold for each of those who have not said who they are. (TLS holds as much all the same.)
    """

    transport: asyncio.Transport

    def __init__(self, room: int) -> None:
        self._space = bytearray(room)
        self._held = bytearray()
        self._ended = self._lost = False  # nothing more comes in; nothing goes out either
        self._error: Exception | None = None
        self._may_write = True
        self._waiting: set[asyncio.Future[None]] = set()

    def widen(self, room: int) -> None:
        self._space = bytearray(room)
        self._go_on()

    async def read(self, most: int) -> bytearray:
        """What has come, at most so much; nothing at the end."""
        await self._until(lambda: self._held or self._ended)
        if not self._held and self._error is not None:
            raise self._error
        piece = self._held[:most]
        del self._held[:most]
        self._go_on()
        return piece

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    async def drain(self) -> None:
        """Until the system has all that was written."""
        if self.transport.is_closing():
            await asyncio.sleep(0)  # so that it is known to be lost, if it is
        await self._until(lambda: self._may_write or self._lost)
        if self._lost:
            raise self._error or ConnectionResetError("the connection was closed")

    def unsent(self) -> tuple[int, int]:
        """Bytes that wait here and in the system. A pair that changes shows that the other end takes something."""
        count, sock = b"\0\0\0\0", self.transport.get_extra_info("socket")
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or a system that does not tell
            count = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, count)
        return self.transport.get_write_buffer_size(), struct.unpack("i", count)[0]

    async def _until(self, true: Callable[[], object]) -> None:
        while not true():
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.add(waiter)
            try:
                await waiter
            finally:
                self._waiting.discard(waiter)

    def _wake(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    def _go_on(self) -> None:
        if len(self._held) < len(self._space) and not self._ended:
            self.transport.resume_reading()

    # What the event loop calls.

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        # What is sent is with the system, not still here. (With high=0, TLS would pause us at every second look.)
        self.transport.set_write_buffer_limits(high=1, low=0)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._space)

    def buffer_updated(self, nbytes: int) -> None:
        self._held += memoryview(self._space)[:nbytes]
        if len(self._held) >= len(self._space):
            self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        self._ended = True
        self._wake()
        return self.transport.get_extra_info("sslcontext") is None  # keep it open: we may still answer. TLS cannot

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended, self._lost, self._error = True, True, exc
        self._wake()

    def pause_writing(self) -> None:
        self._may_write = False

    def resume_writing(self) -> None:
        self._may_write = True
        self._wake()
