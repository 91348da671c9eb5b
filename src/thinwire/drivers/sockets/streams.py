"""Server side of one socket for asyncio: bounded input buffering, and a measure of what the peer has taken."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import struct
import termios
from collections.abc import Callable
from typing import Any


class Stream(asyncio.BufferedProtocol):
    """Reads on demand and writes with backpressure.

    buffer_bytes: how much is read from the system ahead of demand. asyncio's own streams read 256 KiB at once, which is
    too much for each unauthenticated peer. (TLS buffers as much all the same.)
    """

    transport: asyncio.Transport

    def __init__(self, buffer_bytes: int) -> None:
        self._buffer = bytearray(buffer_bytes)
        self._received = bytearray()
        self._ended = self._lost = False  # end of input; connection lost
        self._error: Exception | None = None
        self._can_write = True
        self._waiters: set[asyncio.Future[None]] = set()

    def set_buffer_bytes(self, buffer_bytes: int) -> None:
        """Change how much is read ahead of demand."""
        self._buffer = bytearray(buffer_bytes)
        self._resume_reading()

    async def read(self, max_bytes: int) -> bytearray:
        """Received bytes, at most `max_bytes`; empty at the end of the stream."""
        await self._wait_until(lambda: self._received or self._ended)
        if not self._received and self._error is not None:
            raise self._error
        piece = self._received[:max_bytes]
        del self._received[:max_bytes]
        self._resume_reading()
        return piece

    def write(self, data: bytes) -> None:
        """Hand data to the transport; `drain` waits for it."""
        self.transport.write(data)

    async def drain(self) -> None:
        """Wait until the system has taken all written data."""
        if self.transport.is_closing():
            await asyncio.sleep(0)  # lets the loop report a lost connection
        await self._wait_until(lambda: self._can_write or self._lost)
        if self._lost:
            raise self._error or ConnectionResetError("the connection was closed")

    def unsent_bytes(self) -> tuple[int, int]:
        """Unsent bytes in this buffer and in the system's; a change shows that the peer takes data."""
        count, sock = b"\0\0\0\0", self.transport.get_extra_info("socket")
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or not supported by this system
            count = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, count)
        return self.transport.get_write_buffer_size(), struct.unpack("i", count)[0]

    async def _wait_until(self, condition: Callable[[], object]) -> None:
        while not condition():
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _resume_reading(self) -> None:
        if len(self._received) < len(self._buffer) and not self._ended:
            self.transport.resume_reading()

    # Called by the event loop

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        # Written data goes to the system at once. (With high=0, TLS would pause writing every second time.)
        self.transport.set_write_buffer_limits(high=1, low=0)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self._received += memoryview(self._buffer)[:nbytes]
        if len(self._received) >= len(self._buffer):
            self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        self._ended = True
        self._wake()
        return self.transport.get_extra_info("sslcontext") is None  # keep it open to answer; TLS cannot

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended, self._lost, self._error = True, True, exc
        self._wake()

    def pause_writing(self) -> None:
        self._can_write = False

    def resume_writing(self) -> None:
        self._can_write = True
        self._wake()
