"""One connection as its listener sees it: reading, answering, signs of life."""

from __future__ import annotations

import asyncio
import math
import secrets
import time

from ...core import FrameError, Message
from .authentication import Secret
from .streams import Stream
from .talking import (
    ALIVE,
    CHALLENGE,
    CHUNK,
    HANDSHAKE_BYTES,
    HELLO,
    NONCE_LETTERS,
    PROOF,
    REFUSED,
    Line,
    expect_kind,
    expect_nonce,
    seal_of,
)

_LINGER_S, _LINGER_BYTES = 0.5, 1 << 20


class Visitor:
    """busy: a frame has begun to arrive and is not answered yet; only then are signs of life sent."""

    def __init__(self, stream: Stream, line: Line, address: str, silence_s: float) -> None:
        self.stream, self.line, self.address, self.silence_s = stream, line, address, silence_s
        self.name = self.generation = ""
        self.heard = time.monotonic()
        self.deadline = math.inf  # of the handshake, while it lasts
        self.busy = False
        self._writing = asyncio.Lock()
        self._attending: asyncio.Task[None] | None = None

    async def read(self, limit: int) -> Message:
        reading = self.line.incoming(limit)
        wanted = next(reading)
        try:
            while True:
                wanted = reading.send(await self._exactly(wanted))
                self.busy = True
        except StopIteration as done:
            message: Message = done.value
            return message

    def _patience(self) -> float:
        """Seconds to wait for the next bytes. No `wait_for` around another: the outer one may be overheard."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise asyncio.TimeoutError
        return min(left, self.silence_s)

    async def _exactly(self, wanted: int) -> bytearray:
        """Memory grows with what arrives, never with what was announced."""
        piece = bytearray()
        while len(piece) < wanted:
            chunk = await asyncio.wait_for(self.stream.read(min(CHUNK, wanted - len(piece))), self._patience())
            if not chunk:
                raise EOFError("the connection was closed")
            piece += chunk
            self.heard = time.monotonic()
            self.line.traffic.add(received=len(chunk))
        return piece

    async def send(self, frame: bytearray, kind: str, payload_bytes: int = 0) -> None:
        async with self._writing:
            for piece in self.line.outgoing(frame, kind, payload_bytes):
                for at in range(0, len(piece), CHUNK):
                    chunk = bytes(piece[at : at + CHUNK])
                    self.line.traffic.add(sent=len(chunk))
                    self.stream.write(chunk)
                    await self._taken()

    async def _taken(self) -> None:
        """Until the system has it. A thin link is slow, not silent: it is lost when nothing at all is taken."""
        while True:
            before, patience = self.stream.unsent(), self._patience()
            try:
                return await asyncio.wait_for(self.stream.drain(), patience)
            except asyncio.TimeoutError:
                if self.stream.unsent() == before:
                    raise

    async def beat(self, sender: str, heartbeat_s: float) -> None:
        """Whoever waits for an answer is told that we live; a long answer is a sign of life itself."""
        while True:
            await asyncio.sleep(heartbeat_s)
            if self.busy and not self._writing.locked():
                await self.send(self.line.own(ALIVE, sender), ALIVE)

    async def refuse(self, sender: str, reason: str, sequence: int = 0) -> None:
        await self.send(self.line.own(REFUSED, sender, {"reason": reason}, sequence), REFUSED)

    async def linger(self) -> None:
        """Take what is still arriving, for a moment: unread bytes would make the system discard our last words."""
        left, until = _LINGER_BYTES, time.monotonic() + _LINGER_S
        if self.stream.transport.can_write_eof():  # TLS cannot
            self.stream.transport.write_eof()
        while left > 0 and (wait := until - time.monotonic()) > 0:
            chunk = await asyncio.wait_for(self.stream.read(CHUNK), wait)
            self.line.traffic.add(received=len(chunk))
            left -= len(chunk) or left

    def replace(self) -> None:
        """Another connection has taken its place; nobody waits for an answer here any more."""
        self.stream.transport.abort()
        if self._attending is not None:
            self._attending.cancel()

    def hang_up(self) -> None:
        """What the peer has not taken by now is dropped; else it could keep us waiting."""
        if self.stream.transport.get_write_buffer_size():
            self.stream.transport.abort()
        self.stream.transport.close()

    async def welcome(self, server: str, secret: Secret | None) -> None:
        """Learn who it is and, with a secret, that it holds it. Nothing of the model is said before."""
        self._attending = asyncio.current_task()
        hello = expect_kind(await self.read(HANDSHAKE_BYTES), HELLO)
        expect_nonce(hello)
        self.generation = expect_nonce(hello, "generation")
        if not hello.sender:
            raise FrameError("handshake", f"{HELLO}: the sender has no name")
        nonce = secrets.token_hex(NONCE_LETTERS // 2)  # must be unforeseeable, so it cannot follow from a key
        await self.send(self.line.own(CHALLENGE, server, {"nonce": nonce}), CHALLENGE)
        self.line.seal = seal_of(secret, True, self.line.fingerprint, hello, nonce)
        proof = expect_kind(await self.read(HANDSHAKE_BYTES), PROOF)
        if proof.sender != hello.sender:
            raise FrameError("sender", f"{hello.sender!r} said hello, {proof.sender!r} goes on")
        self.name, self.busy = hello.sender, False
