"""Server side of the socket transport: accepts connections and calls a handler for one message at a time."""

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
from .addresses import address_of_peer, check_exposure, open_listening_socket, parse_address
from .authentication import Secret
from .protocol import (
    ALIVE,
    BYE,
    FAILED,
    HANDSHAKE_BYTES,
    LARGE,
    NONCE_LETTERS,
    READY,
    ByteCounter,
    FrameChannel,
    check_heartbeat,
    failure_reply,
    with_sequence,
)
from .server_connection import ServerConnection, rejection_reason
from .sessions import Session, Sessions
from .settings import describe_settings
from .streams import Stream
from .tls import Tls

_READ_AHEAD_BYTES = 1 << 16  # of an authenticated peer


class Listener(ClosedOnExit):
    """Calls `handle(message) -> Message` for every new message of every peer, one at a time, and sends what it returns.

    Attributes:
        address: the address with the port that was picked.
        rejected: number of rejected connections and messages, by reason.
        repeated: number of messages that were sent again and got the stored answer.
        traffic: bytes, in total and by kind of message.

    Args:
        address: HOST:PORT, [IPv6]:PORT or unix:PATH; port 0 picks one. Other machines can reach it only with a secret
            or with TLS in both directions.
        handle: must not wait for a message of another peer; it answers that the peer has to wait instead. The text of
            a ThinwireError is sent to the peer, any other error is logged here.
        secret: shared with the workers.
        tls: certificate, key and CA.
        fingerprint: of model and settings; peers with another one are rejected.
        settings: sent to an authenticated peer with another fingerprint, so that its error names what differs.
        name: of the server, the sender of its replies.
        max_frame: bytes of the longest frame, `wire.frame_limit(specs)`.
        handshake_s: seconds for the handshake of a peer.
        idle_timeout_s: a peer that sends nothing for this long is lost.
        heartbeat_s: seconds between heartbeats to a peer that waits for its answer.
        max_connections: of authenticated peers, and of unauthenticated ones; the oldest of the latter is dropped when
            there are more.
        on_lost: called with a PeerLostError when a peer is lost, in the thread of the handler.
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
        idle_timeout_s: float = 5.0,
        heartbeat_s: float = 1.0,
        max_connections: int = 256,
        on_lost: Callable[[PeerLostError], None] | None = None,
    ) -> None:
        check_heartbeat(heartbeat_s, idle_timeout_s, "Listener")
        wanted = parse_address(address)
        check_exposure(wanted, secret is not None or (tls is not None and tls.is_mutual), tls, "Listener")
        self._context = None if tls is None else tls.server_context()
        self._handle, self._on_lost, self._secret, self._fingerprint = handle, on_lost, secret, fingerprint
        self._handshake_s, self._idle_timeout_s, self._heartbeat_s = handshake_s, idle_timeout_s, heartbeat_s
        self._salt, self._settings = secrets.token_hex(NONCE_LETTERS // 2), describe_settings(settings or {})
        if secret is not None:
            secret.master_key(self._salt)  # takes a moment, so it is done before the first connection
        self.name, self.max_frame, self.max_connections = name, max_frame, max_connections
        self.rejected: Counter[str] = Counter()
        self.repeated = 0
        self.traffic = ByteCounter()
        self._unauthenticated: dict[asyncio.Task[None], None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: dict[str, ServerConnection] = {}  # authenticated, by name of the peer
        self._sessions = Sessions(max_connections)
        self._worker = ThreadPoolExecutor(1, "thinwire-handle")
        self._pool = ThreadPoolExecutor(2, "thinwire-check")  # for large frames
        self._socket, bound = open_listening_socket(wanted)
        self.address = str(bound)
        self._path = bound.path
        self._loop = asyncio.new_event_loop()
        self._accepting = self._loop.create_task(self._accept())
        self._thread = threading.Thread(target=self._run, name="thinwire-listener", daemon=True)
        self._thread.start()

    def peers(self) -> dict[str, float]:
        """Names of the connected peers, with the seconds since their last bytes."""
        now = time.monotonic()
        return {name: now - connection.last_received for name, connection in list(self._connections.items())}

    def close(self) -> None:
        """Stop listening and close all connections, after the running handler has returned."""
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
            while tasks := asyncio.all_tasks(self._loop):  # more than once: `wait_for` may miss a cancellation
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
            except OSError:  # usually no file descriptor left: the connected peers continue
                self.rejected["no room"] += 1
                await asyncio.sleep(0.1)
                continue
            while len(self._unauthenticated) >= self.max_connections:
                oldest = next(iter(self._unauthenticated))
                del self._unauthenticated[oldest]
                self.rejected["too many"] += 1
                oldest.cancel()
            task = self._loop.create_task(self._serve_connection(sock))
            self._tasks.add(task)
            self._unauthenticated[task] = None
            task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._unauthenticated.pop(task, None)

    async def _serve_connection(self, sock: socket.socket) -> None:
        """One connection from its handshake to its end."""
        connection, deadline = None, time.monotonic() + self._handshake_s
        try:
            connection = await asyncio.wait_for(self._open(sock), self._handshake_s)
            connection.deadline = deadline
            await self._admit(connection)
            connection.deadline = math.inf
        except (FrameError, OSError, EOFError, asyncio.TimeoutError) as error:
            self.rejected[rejection_reason(error, tls=connection is None)] += 1
            if isinstance(error, FrameError) and connection is not None:
                await connection.reject_and_close(self.name, error, self._settings)
        else:
            self._unauthenticated.pop(asyncio.current_task(), None)  # type: ignore[arg-type]
            await self._serve_messages(connection)
        finally:
            if connection is not None:
                if self._connections.get(connection.name) is connection:  # admitted, but lost before it was served
                    del self._connections[connection.name]
                connection.close()

    async def _open(self, sock: socket.socket) -> ServerConnection:
        try:
            sock.setblocking(False)
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer = address_of_peer(sock) or self.address
        except OSError:  # closed already
            sock.close()
            raise
        stream = Stream(HANDSHAKE_BYTES)
        await self._loop.connect_accepted_socket(lambda: stream, sock, ssl=self._context)
        channel = FrameChannel(self._fingerprint, self.traffic)
        return ServerConnection(stream, channel, peer, self._idle_timeout_s, self._pool)

    async def _admit(self, connection: ServerConnection) -> None:
        is_certified = self._context is not None and self._context.verify_mode == ssl.CERT_REQUIRED
        await connection.handshake(self.name, self._secret, self._salt, is_certified)
        former = self._connections.get(connection.name)
        if former is None and len(self._connections) >= self.max_connections:
            raise FrameError("full", f"{self.max_connections} peers are connected already; raise max_connections")
        self._connections[connection.name] = connection
        connection.channel.handshake_done = True
        connection.stream.set_buffer_bytes(_READ_AHEAD_BYTES)
        if former is not None:
            former.abort()  # the peer has reconnected
        self._sessions.open(connection.name, connection.generation, self._connections)
        ready = connection.channel.control_frame(READY, self.name, {"max_frame": self.max_frame})
        await connection.send(ready, READY)

    async def _serve_messages(self, connection: ServerConnection) -> None:
        """Answer one peer until it says goodbye or is lost."""
        heartbeats = self._loop.create_task(connection.send_heartbeats(self.name, self._heartbeat_s))
        why = "closed the connection"
        try:
            while await self._serve_message(connection):
                connection.is_busy = False
            why = ""
        except FrameError as error:
            why = f"sent an invalid frame ({error.reason})"
        except asyncio.TimeoutError:
            self.rejected["silent"] += 1
            why = f"was silent for {self._idle_timeout_s:g} s"
        except asyncio.CancelledError:  # the listener is closing
            why = ""
            raise
        except (OSError, EOFError):
            pass
        finally:
            heartbeats.cancel()
            if self._connections.get(connection.name) is connection:
                del self._connections[connection.name]
                if not why:
                    self._sessions.close(connection.name)
                elif self._on_lost is not None:
                    lost = PeerLostError(f"{connection.name} at {connection.address} {why}")
                    lost.peer = connection.name
                    self._worker.submit(self._on_lost, lost)

    async def _serve_message(self, connection: ServerConnection) -> bool:
        """Read one frame and send its answer; False if the peer said goodbye."""
        message, session = None, self._sessions[connection.name]
        connection.is_busy = True  # so that it gets heartbeats while an earlier message waits for the handler
        await session.wait_answered()
        connection.is_busy = False
        try:
            message = await connection.read(self.max_frame)
            if message.sender != connection.name:
                raise FrameError("sender", f"{connection.name!r} sent a message as {message.sender!r:.60}")
            if message.kind in (ALIVE, BYE):
                return message.kind == ALIVE
            if message.kind.startswith("~") or message.sequence < max(1, session.sequence):
                reason = "kind" if message.kind.startswith("~") else "old sequence"
                raise FrameError(reason, f"{message.kind!r:.40} with sequence {message.sequence} is not expected")
        except FrameError as error:
            self.rejected[error.reason] += 1
            if connection.channel.lost_framing or error.reason == "sender":
                await connection.reject_and_close(self.name, error, self._settings)
                raise
            await connection.reject(self.name, error.reason, 0 if message is None else message.sequence)
            return True
        await connection.send(*await self._answer(session, message))
        return True

    async def _answer(self, session: Session, message: Message) -> tuple[bytearray, str, int]:
        if session.answer is not None and message.sequence == session.sequence:
            self.repeated += 1
        else:
            session.sequence = message.sequence
            session.answer = self._loop.create_task(self._call_handler(message))
        return await asyncio.shield(session.answer)  # kept even if the peer disconnects meanwhile

    async def _call_handler(self, message: Message) -> tuple[bytearray, str, int]:
        try:
            reply = await self._loop.run_in_executor(self._worker, self._handle, message)
            reply = with_sequence(reply, self.name, message.sequence)
            if reply.payload.num_bytes < LARGE:
                frame = self._encode(reply)
            else:
                frame = await self._loop.run_in_executor(self._pool, self._encode, reply)
            if len(frame) > self.max_frame:
                raise CompositionError(f"an answer of {len(frame)} bytes, max_frame is {self.max_frame}; raise it")
            return frame, reply.kind, reply.payload.num_bytes
        except Exception as error:
            self.rejected["handler" if isinstance(error, ThinwireError) else "error"] += 1
            return self._encode(failure_reply(error, message, self.name)), FAILED, 0

    def _encode(self, message: Message) -> bytearray:
        return encode_frame(message, self._fingerprint, self._secret is not None)
