"""Server side of one client connection: reads and writes frames, sends heartbeats while a request is being handled."""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import ssl
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor

from ...core import Field, FrameError, Message
from ...core.logs import get_logger
from .authentication import Secret
from .protocol import (
    ALIVE,
    CHALLENGE,
    CHUNK,
    HANDSHAKE_BYTES,
    HANDSHAKE_VERSION,
    HELLO,
    LARGE,
    NONCE_LETTERS,
    PROOF,
    REJECTED,
    FrameChannel,
    expect_kind,
    expect_nonce,
    expect_version,
    make_authenticator,
    resume,
)
from .streams import Stream
from .tls import check_certificate_name

_log = get_logger(__name__)
_LINGER_S, _LINGER_BYTES = 0.5, 1 << 20
_EXPLAINED = ("handshake version", "certificate name")  # their text helps the peer and reveals nothing


class ServerConnection:
    """One client connection of a `Listener`.

    Attributes:
        name: of the peer, once the handshake is done.
        last_received: when its last bytes arrived, by time.monotonic().
        is_busy: a frame has begun to arrive and is not answered yet; heartbeats are sent only then.

    Args:
        stream: of the socket.
        channel: frames of this connection.
        address: of the peer, for error texts.
        idle_timeout_s: a peer that sends nothing for this long is lost.
        pool: checks and authenticates large frames outside of the event loop.
    """

    def __init__(
        self, stream: Stream, channel: FrameChannel, address: str, idle_timeout_s: float, pool: Executor
    ) -> None:
        self.stream, self.channel, self.address, self.idle_timeout_s = stream, channel, address, idle_timeout_s
        self._pool = pool
        self.name = self.generation = ""
        self.last_received = time.monotonic()
        self.deadline = math.inf  # of the handshake, while it lasts
        self.is_busy = False
        self._writing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def read(self, limit: int) -> Message:
        """The next message; FrameError if a frame is longer than `limit` or invalid."""
        reading = self.channel.read_frame(limit)
        wanted, num_bytes, message = next(reading), 0, None
        while message is None:
            piece = await self._read_exactly(wanted)
            self.is_busy, num_bytes = True, num_bytes + len(piece)
            if num_bytes < LARGE:
                wanted, message = resume(reading, piece)
            else:
                loop = asyncio.get_running_loop()
                wanted, message = await loop.run_in_executor(self._pool, resume, reading, piece)
        return message

    def _timeout_s(self) -> float:
        """Seconds to wait for the next bytes. One `wait_for` only: an outer one may miss its cancellation."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise asyncio.TimeoutError
        return min(left, self.idle_timeout_s)

    async def _read_exactly(self, wanted: int) -> bytearray:
        """Memory grows with the bytes that arrive, never with the announced length."""
        piece = bytearray()
        while len(piece) < wanted:
            chunk = await asyncio.wait_for(self.stream.read(min(CHUNK, wanted - len(piece))), self._timeout_s())
            if not chunk:
                raise EOFError("the connection was closed")
            piece += chunk
            self.last_received = time.monotonic()
            self.channel.traffic.add(received=len(chunk))
        return piece

    async def send(self, frame: bytearray, kind: str, payload_bytes: int = 0) -> None:
        """Send one frame; returns when the system has taken it."""
        async with self._writing:
            if len(frame) < LARGE:
                pieces = self.channel.sealed_pieces(frame, kind, payload_bytes)
            else:
                loop = asyncio.get_running_loop()
                pieces = await loop.run_in_executor(self._pool, self.channel.sealed_pieces, frame, kind, payload_bytes)
            for piece in pieces:
                for at in range(0, len(piece), CHUNK):
                    chunk = bytes(piece[at : at + CHUNK])
                    self.channel.traffic.add(sent=len(chunk))
                    self.stream.write(chunk)
                    await self._drain()

    async def _drain(self) -> None:
        """Wait until the system has taken the data. A thin link is slow, not idle: it times out if nothing is taken."""
        while True:
            before, timeout_s = self.stream.unsent_bytes(), self._timeout_s()
            try:
                return await asyncio.wait_for(self.stream.drain(), timeout_s)
            except asyncio.TimeoutError:
                if self.stream.unsent_bytes() == before:
                    raise

    async def send_heartbeats(self, sender: str, heartbeat_s: float) -> None:
        """Tell a peer that waits for an answer that the server is alive; an answer being sent is a heartbeat itself."""
        while True:
            await asyncio.sleep(heartbeat_s)
            if self.is_busy and not self._writing.locked():
                await self.send(self.channel.control_frame(ALIVE, sender), ALIVE)

    async def reject(
        self, sender: str, reason: str, sequence: int = 0, more: Mapping[str, Field] | None = None
    ) -> None:
        """Answer that a message is rejected."""
        fields = {"reason": reason, **(more or {})}
        await self.send(self.channel.control_frame(REJECTED, sender, fields, sequence), REJECTED)

    async def reject_and_close(self, server: str, error: FrameError, settings: Sequence[str]) -> None:
        """Send the reason before the connection is closed.

        settings: those of the server; sent to an authenticated peer with other settings.
        """
        more: dict[str, Field] = {"text": str(error)} if error.reason in _EXPLAINED else {}
        if error.reason == "fingerprint" and self.name:
            more["settings"] = list(settings)
        if error.reason in ("fingerprint", "certificate name"):
            _log.warning("rejected a peer at %s: %s", self.address, error)
        with contextlib.suppress(OSError, EOFError, asyncio.TimeoutError):
            if not self.name:
                self.channel.authenticator = None  # not agreed yet: the peer could not verify our tag
            await self.reject(server, error.reason, more=more)
            await self._drain_input()

    async def _drain_input(self) -> None:
        """Read for a moment what still arrives: unread bytes would make the system discard our last frame."""
        left, until = _LINGER_BYTES, time.monotonic() + _LINGER_S
        if self.stream.transport.can_write_eof():  # TLS cannot
            self.stream.transport.write_eof()
        while left > 0 and (wait := until - time.monotonic()) > 0:
            chunk = await asyncio.wait_for(self.stream.read(CHUNK), wait)
            self.channel.traffic.add(received=len(chunk))
            left -= len(chunk) or left

    def abort(self) -> None:
        """End this connection because the peer has opened another one; no answer is needed here any more."""
        self.stream.transport.abort()
        if self._task is not None:
            self._task.cancel()

    def close(self) -> None:
        """Close at once; unsent data is dropped, so that the peer cannot delay it."""
        if self.stream.transport.get_write_buffer_size():
            self.stream.transport.abort()
        self.stream.transport.close()

    async def handshake(self, server: str, secret: Secret | None, salt: str, is_certified: bool) -> None:
        """Learn the peer's name and, with a secret, verify that it holds it. Nothing of the model is sent before.

        is_certified: TLS has verified its certificate, so its name must be in it.
        """
        self._task = asyncio.current_task()
        hello = expect_version(expect_kind(await self.read(HANDSHAKE_BYTES), HELLO), "the worker")
        expect_nonce(hello)
        self.generation = expect_nonce(hello, "generation")
        if not hello.sender:
            raise FrameError("handshake", f"{HELLO}: the sender has no name")
        if is_certified:
            check_certificate_name(hello.sender, self.stream.transport.get_extra_info("peercert") or {})
        nonce = secrets.token_hex(NONCE_LETTERS // 2)  # must be unpredictable, so it cannot follow from a key
        challenge: dict[str, Field] = {"handshake": HANDSHAKE_VERSION, "nonce": nonce, "salt": salt}
        await self.send(self.channel.control_frame(CHALLENGE, server, challenge), CHALLENGE)
        self.channel.authenticator = make_authenticator(secret, True, self.channel, hello, nonce, salt)
        proof = expect_kind(await self.read(HANDSHAKE_BYTES), PROOF)
        if proof.sender != hello.sender:
            raise FrameError("sender", f"{HELLO} came from {hello.sender!r}, {PROOF} from {proof.sender!r}")
        self.name, self.is_busy = hello.sender, False
        if self.channel.peer_fingerprint != self.channel.fingerprint:
            prints = f"{self.channel.peer_fingerprint:016x}, this server {self.channel.fingerprint:016x}"
            raise FrameError("fingerprint", f"{self.name!r:.70} has other settings: fingerprint {prints}")


def rejection_reason(error: Exception, tls: bool) -> str:
    """Why a handshake failed, in a word or two for counting."""
    if isinstance(error, FrameError):
        return "wrong secret" if error.reason == "forged" else error.reason
    if isinstance(error, asyncio.TimeoutError | TimeoutError):
        return "handshake too slow"
    return "tls" if tls or isinstance(error, ssl.SSLError) else "handshake cut"
