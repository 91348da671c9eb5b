"""Answers messages: a thread of its own talks to all peers, and calls the handler for one message at a time."""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ...core import ClosedOnExit, CompositionError, FrameError, Message, PeerLostError, ThinwireError
from ...wire import MAX_FRAME, encode_frame
from .addresses import address_of_peer, check_exposure, listening_socket, parse_address
from .authentication import Secret
from .sessions import Session, Sessions
from .settings import described
from .streams import Stream
from .talking import (
    ALIVE,
    BYE,
    FAILED,
    HANDSHAKE_BYTES,
    LARGE,
    NONCE_LETTERS,
    READY,
    Crossings,
    Line,
    check_beats,
    failure,
    numbered,
)
from .tls import Tls
from .visitor import Visitor, refusal_reason

_ROOM = 1 << 16  # bytes taken in advance from a peer that is known


class Listener(ClosedOnExit):
    """Calls `handle(message) -> Message` for every new message of every peer, one at a time, and sends what it returns.

    address: HOST:PORT, [IPv6]:PORT or unix:PATH; port 0 picks one, `listener.address` tells. Other machines can reach
    it only with a secret or with TLS in both directions. handle: must not wait for another peer's message; answer that
    it is too early instead. A ThinwireError it raises is told to the peer, any other error is logged here.
    fingerprint: of model and settings; peers with another are refused, and told `settings` if they hold the secret, so
    that they can say which one differs. max_frame: bytes, `wire.frame_limit(specs)`.
    handshake_s: until then a peer has said who it is. silence_s: a peer that says nothing for so long is lost; then
    `lost(error)` is called, like a handler. most_connections: of those who are known, and of those who are not yet; of
    the latter the oldest gives way.

    refused: how often what was refused, by reason. repeated: messages that were answered again.
    """

    def __init__(
        self,
        address: str,
        handle: Callable[[Message], Message],
        *,
        secret: Secret | None = None,
        tls: Tls | None = None,
        fingerprint: int = 0,
        settings: Mapping[str, object] | None = None,
        name: str = "server",
        max_frame: int = MAX_FRAME,
        handshake_s: float = 5.0,
        silence_s: float = 5.0,
        heartbeat_s: float = 1.0,
        most_connections: int = 256,
        lost: Callable[[PeerLostError], None] | None = None,
    ) -> None:
        check_beats(heartbeat_s, silence_s, "Listener")
        where = parse_address(address)
        check_exposure(where, secret is not None or (tls is not None and tls.is_mutual), tls, "Listener")
        self._context = None if tls is None else tls.server_context()
        self._handle, self._lost, self._secret, self._fingerprint = handle, lost, secret, fingerprint
        self._handshake_s, self._silence_s, self._heartbeat_s = handshake_s, silence_s, heartbeat_s
        self._salt, self._settings = secrets.token_hex(NONCE_LETTERS // 2), described(settings or {})
        if secret is not None:
            secret.master_key(self._salt)  # takes a moment, so it is done before the first connection
        self.name, self.max_frame, self.most_connections = name, max_frame, most_connections
        self.refused: Counter[str] = Counter()
        self.repeated = 0
        self.traffic = Crossings()
        self._strangers: dict[asyncio.Task[None], None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._visitors: dict[str, Visitor] = {}
        self._sessions = Sessions(most_connections)
        self._worker = ThreadPoolExecutor(1, "thinwire-handle")
        self._pool = ThreadPoolExecutor(2, "thinwire-check")  # for large frames
        self._socket, bound = listening_socket(where)
        self.address = str(bound)
        self._path = bound.path
        self._loop = asyncio.new_event_loop()
        self._accepting = self._loop.create_task(self._accept())
        self._thread = threading.Thread(target=self._run, name="thinwire-listener", daemon=True)
        self._thread.start()

    def peers(self) -> dict[str, float]:
        """Who is connected, and for how many seconds nothing was heard of it."""
        now = time.monotonic()
        return {name: now - visitor.heard for name, visitor in list(self._visitors.items())}

    def close(self) -> None:
        """Stop listening and hang up; a handler at work is waited for."""
        if self._loop.is_closed():
            return
        with contextlib.suppress(RuntimeError):  # it has just ended by itself
            self._loop.call_soon_threadsafe(self._accepting.cancel)
        self._thread.join()
        self._worker.shutdown()
        self._pool.shutdown()
        if self._path:
            Path(self._path).unlink(missing_ok=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                self._loop.run_until_complete(self._accepting)
            while tasks := asyncio.all_tasks(self._loop):  # more than once: `wait_for` may overhear it
                for task in tasks:
                    task.cancel()
                self._loop.run_until_complete(asyncio.wait(tasks, timeout=0.1))
        finally:
            self._socket.close()
            self._loop.close()

    async def _accept(self) -> None:
        while True:
            try:
                sock, _ = await self._loop.sock_accept(self._socket)
            except OSError:  # usually no file descriptor left: those who are here go on
                self.refused["no room"] += 1
                await asyncio.sleep(0.1)
                continue
            while len(self._strangers) >= self.most_connections:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                self.refused["too many"] += 1
                oldest.cancel()
            task = self._loop.create_task(self._attend(sock))
            self._tasks.add(task)
            self._strangers[task] = None
            task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._strangers.pop(task, None)

    async def _attend(self, sock: socket.socket) -> None:
        """One connection from its first byte to its last."""
        visitor, deadline = None, time.monotonic() + self._handshake_s
        try:
            visitor = await asyncio.wait_for(self._open(sock), self._handshake_s)
            visitor.deadline = deadline
            await self._admit(visitor)
            visitor.deadline = math.inf
        except (FrameError, OSError, EOFError, asyncio.TimeoutError) as error:
            self.refused[refusal_reason(error, tls=visitor is None)] += 1
            if isinstance(error, FrameError) and visitor is not None:
                await visitor.say_refused(self.name, error, self._settings)
        else:
            self._strangers.pop(asyncio.current_task(), None)  # type: ignore[arg-type]
            await self._stay(visitor)
        finally:
            if visitor is not None:
                if self._visitors.get(visitor.name) is visitor:  # admitted, but gone before it knew
                    del self._visitors[visitor.name]
                visitor.hang_up()

    async def _open(self, sock: socket.socket) -> Visitor:
        try:
            sock.setblocking(False)
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            where = address_of_peer(sock) or self.address
        except OSError:  # gone already
            sock.close()
            raise
        stream = Stream(HANDSHAKE_BYTES)
        await self._loop.connect_accepted_socket(lambda: stream, sock, ssl=self._context)
        return Visitor(stream, Line(self._fingerprint, self.traffic), where, self._silence_s, self._pool)

    async def _admit(self, visitor: Visitor) -> None:
        is_certified = self._context is not None and self._context.verify_mode == ssl.CERT_REQUIRED
        await visitor.welcome(self.name, self._secret, self._salt, is_certified)
        former = self._visitors.get(visitor.name)
        if former is None and len(self._visitors) >= self.most_connections:
            raise FrameError("full", f"{self.most_connections} peers are connected, and no more are admitted")
        self._visitors[visitor.name] = visitor
        visitor.line.known = True
        visitor.stream.widen(_ROOM)
        if former is not None:
            former.replace()  # it comes anew, over another connection
        self._sessions.open(visitor.name, visitor.generation, self._visitors)
        await visitor.send(visitor.line.own(READY, self.name, {"max_frame": self.max_frame}), READY)

    async def _stay(self, visitor: Visitor) -> None:
        """Answer one peer until it leaves or is lost."""
        beats = self._loop.create_task(visitor.beat(self.name, self._heartbeat_s))
        why = "closed the connection"
        try:
            while await self._converse(visitor):
                visitor.busy = False
            why = ""
        except FrameError as error:
            why = f"sent what is no frame of ours ({error.reason})"
        except asyncio.TimeoutError:
            self.refused["silent"] += 1
            why = f"was silent for {self._silence_s:g} s"
        except asyncio.CancelledError:  # the listener is closing
            why = ""
            raise
        except (OSError, EOFError):
            pass
        finally:
            beats.cancel()
            if self._visitors.get(visitor.name) is visitor:
                del self._visitors[visitor.name]
                if not why:
                    self._sessions.close(visitor.name)
                elif self._lost is not None:
                    lost = PeerLostError(f"{visitor.name} at {visitor.address} {why}")
                    lost.peer = visitor.name
                    self._worker.submit(self._lost, lost)

    async def _converse(self, visitor: Visitor) -> bool:
        """One frame and its answer; False if the peer took its leave."""
        message, session = None, self._sessions[visitor.name]
        visitor.busy = True  # it is told that we live while an earlier message of its waits for the handler
        await session.rest()
        visitor.busy = False
        try:
            message = await visitor.read(self.max_frame)
            if message.sender != visitor.name:
                raise FrameError("sender", f"{visitor.name!r} speaks for {message.sender!r:.60}")
            if message.kind in (ALIVE, BYE):
                return message.kind == ALIVE
            if message.kind.startswith("~") or message.sequence < max(1, session.sequence):
                reason = "kind" if message.kind.startswith("~") else "old sequence"
                raise FrameError(reason, f"{message.kind!r:.40} with sequence {message.sequence} is out of place")
        except FrameError as error:
            self.refused[error.reason] += 1
            if visitor.line.astray or error.reason == "sender":
                await visitor.say_refused(self.name, error, self._settings)
                raise
            await visitor.refuse(self.name, error.reason, 0 if message is None else message.sequence)
            return True
        await visitor.send(*await self._answer(session, message))
        return True

    async def _answer(self, session: Session, message: Message) -> tuple[bytearray, str, int]:
        if session.answer is not None and message.sequence == session.sequence:
            self.repeated += 1
        else:
            session.sequence = message.sequence
            session.answer = self._loop.create_task(self._handled(message))
        return await asyncio.shield(session.answer)  # whoever asked may be gone; the answer is kept

    async def _handled(self, message: Message) -> tuple[bytearray, str, int]:
        try:
            reply = await self._loop.run_in_executor(self._worker, self._handle, message)
            reply = numbered(reply, self.name, message.sequence)
            if reply.payload.num_bytes < LARGE:
                frame = self._frame(reply)
            else:
                frame = await self._loop.run_in_executor(self._pool, self._frame, reply)
            if len(frame) > self.max_frame:
                raise CompositionError(f"an answer of {len(frame)} bytes, max_frame is {self.max_frame}; raise it")
            return frame, reply.kind, reply.payload.num_bytes
        except Exception as error:
            self.refused["handler" if isinstance(error, ThinwireError) else "error"] += 1
            return self._frame(failure(error, message, self.name)), FAILED, 0

    def _frame(self, message: Message) -> bytearray:
        return encode_frame(message, self._fingerprint, self._secret is not None)
