"""One connection as its listener sees it: reading, answering, signs of life."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
import ssl
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor

from ...core import Field, FrameError, Message
from .authentication import Secret
from .streams import Stream
from .talking import (
    ALIVE,
    CHALLENGE,
    CHUNK,
    HANDSHAKE,
    HANDSHAKE_BYTES,
    HELLO,
    LARGE,
    NONCE_LETTERS,
    PROOF,
    REFUSED,
    Line,
    expect_kind,
    expect_nonce,
    expect_version,
    resume,
    seal_of,
)
from .tls import check_name

_log = logging.getLogger(__name__)
_LINGER_S, _LINGER_BYTES = 0.5, 1 << 20
_EXPLAINED = ("handshake version", "certificate name")  # reasons whose text helps the peer and tells it nothing of ours


class Visitor:
    """busy: a frame has begun to arrive and is not answered yet; only then are signs of life sent.

    pool: where large frames are checked and sealed, so that the event loop goes on meanwhile.
    """

    def __init__(self, stream: Stream, line: Line, address: str, silence_s: float, pool: Executor) -> None:
        self.stream, self.line, self.address, self.silence_s = stream, line, address, silence_s
        self._pool = pool
        self.name = self.generation = ""
        self.heard = time.monotonic()
        self.deadline = math.inf  # of the handshake, while it lasts
        self.busy = False
        self._writing = asyncio.Lock()
        self._attending: asyncio.Task[None] | None = None

    async def read(self, limit: int) -> Message:
        reading = self.line.incoming(limit)
        wanted, arrived, message = next(reading), 0, None
        while message is None:
            piece = await self._exactly(wanted)
            self.busy, arrived = True, arrived + len(piece)
            if arrived < LARGE:
                wanted, message = resume(reading, piece)
            else:
                loop = asyncio.get_running_loop()
                wanted, message = await loop.run_in_executor(self._pool, resume, reading, piece)
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
            if len(frame) < LARGE:
                pieces = self.line.outgoing(frame, kind, payload_bytes)
            else:
                loop = asyncio.get_running_loop()
                pieces = await loop.run_in_executor(self._pool, self.line.outgoing, frame, kind, payload_bytes)
            for piece in pieces:
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

    async def refuse(
        self, sender: str, reason: str, sequence: int = 0, more: Mapping[str, Field] | None = None
    ) -> None:
        await self.send(self.line.own(REFUSED, sender, {"reason": reason, **(more or {})}, sequence), REFUSED)

    async def say_refused(self, server: str, error: FrameError, settings: Sequence[str]) -> None:
        """The last words to it. settings: for a peer whose own differ; only who passed the handshake is told them."""
        more: dict[str, Field] = {"text": str(error)} if error.reason in _EXPLAINED else {}
        if error.reason == "fingerprint" and self.name:
            more["settings"] = list(settings)
        if error.reason in ("fingerprint", "certificate name"):
            _log.warning("refused a peer at %s: %s", self.address, error)
        with contextlib.suppress(OSError, EOFError, asyncio.TimeoutError):
            if not self.name:
                self.line.seal = None  # not agreed yet: what we seal could not be read
            await self.refuse(server, error.reason, more=more)
            await self.linger()

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

    async def welcome(self, server: str, secret: Secret | None, salt: str, is_certified: bool) -> None:
        """Learn who it is and, with a secret, that it holds it. Nothing of the model is said before.

        is_certified: TLS has verified its certificate, so its name must be in it.
        """
        self._attending = asyncio.current_task()
        hello = expect_version(expect_kind(await self.read(HANDSHAKE_BYTES), HELLO), "the worker")
        expect_nonce(hello)
        self.generation = expect_nonce(hello, "generation")
        if not hello.sender:
            raise FrameError("handshake", f"{HELLO}: the sender has no name")
        if is_certified:
            check_name(hello.sender, self.stream.transport.get_extra_info("peercert") or {})
        nonce = secrets.token_hex(NONCE_LETTERS // 2)  # must be unforeseeable, so it cannot follow from a key
        challenge: dict[str, Field] = {"handshake": HANDSHAKE, "nonce": nonce, "salt": salt}
        await self.send(self.line.own(CHALLENGE, server, challenge), CHALLENGE)
        self.line.seal = seal_of(secret, True, self.line, hello, nonce, salt)
        proof = expect_kind(await self.read(HANDSHAKE_BYTES), PROOF)
        if proof.sender != hello.sender:
            raise FrameError("sender", f"{hello.sender!r} said hello, {proof.sender!r} goes on")
        self.name, self.busy = hello.sender, False
        if self.line.theirs != self.line.fingerprint:
            prints = f"{self.line.theirs:016x}, this server {self.line.fingerprint:016x}"
            raise FrameError("fingerprint", f"{self.name!r:.70} has other settings: fingerprint {prints}")


def refusal_reason(error: Exception, tls: bool) -> str:
    """Why a handshake failed, in a word or two for counting."""
    if isinstance(error, FrameError):
        return "wrong secret" if error.reason == "forged" else error.reason
    if isinstance(error, asyncio.TimeoutError | TimeoutError):
        return "handshake too slow"
    return "tls" if tls or isinstance(error, ssl.SSLError) else "handshake cut"
