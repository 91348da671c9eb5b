"""Worker side of the socket transport: sends a message, waits for the answer, reconnects if the connection breaks."""

from __future__ import annotations

import contextlib
import secrets
import ssl
import threading
import time
from collections.abc import Mapping

from ...core import (
    AuthenticationError,
    ClosedError,
    ClosedOnExit,
    CompositionError,
    ConfigMismatch,
    FrameError,
    Message,
    PeerLostError,
)
from ...wire import MAX_FRAME, encode_frame
from .addresses import check_exposure, parse_address
from .authentication import Secret
from .client_socket import ClientSocket
from .protocol import (
    ALIVE,
    BYE,
    CHALLENGE,
    HANDSHAKE_BYTES,
    HANDSHAKE_VERSION,
    HELLO,
    NONCE_LETTERS,
    PROOF,
    READY,
    REJECTED,
    TRANSIENT_REASONS,
    ByteCounter,
    FrameChannel,
    check_heartbeat,
    check_kind,
    expect_kind,
    expect_nonce,
    expect_success,
    expect_version,
    make_authenticator,
    with_sequence,
)
from .settings import describe_differences, describe_settings
from .tls import Tls

_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.05, 2.0
_MAX_HANGUPS = 3  # in a row, during the handshake under TLS


class Connection(ClosedOnExit):
    """A `Transport` to one `Listener`; it connects at the first `call`. A thread sends heartbeats while it is open.

    Attributes:
        traffic: bytes, in total and by kind of message.
        connects: number of times it connected.
        resent: number of messages sent more than once.

    Args:
        address: of the server.
        sender: name under which the server knows this worker.
        secret, tls, fingerprint, settings, max_frame: see `Listener`.
        handshake_s: seconds for the handshake.
        idle_timeout_s: if the server sends nothing for this long, reconnect.
        heartbeat_s: seconds between heartbeats to the server.
        retry_s: if reconnecting fails for this long, the server is lost.
        timeout_s: an answer must arrive within this time, even if the server sends heartbeats.
    """

    def __init__(
        self,
        address: str,
        sender: str,
        *,
        secret: Secret | None = None,
        tls: Tls | None = None,
        fingerprint: int = 0,
        settings: Mapping[str, object] | None = None,
        max_frame: int = MAX_FRAME,
        handshake_s: float = 5.0,
        idle_timeout_s: float = 5.0,
        heartbeat_s: float = 1.0,
        retry_s: float = 30.0,
        timeout_s: float = 600.0,
    ) -> None:
        if not sender:
            raise CompositionError("Connection: sender must not be empty; use for example 'worker-3'")
        check_heartbeat(heartbeat_s, idle_timeout_s, "Connection")
        self._address = parse_address(address)
        check_exposure(self._address, secret is not None or tls is not None, tls, "Connection")
        self._context = None if tls is None else tls.client_context()
        self._secret, self._fingerprint, self._max_frame = secret, fingerprint, max_frame
        self._settings = describe_settings(settings or {})
        self._handshake_s, self._idle_timeout_s, self._heartbeat_s = handshake_s, idle_timeout_s, heartbeat_s
        self._retry_s, self._timeout_s = retry_s, timeout_s
        self.sender, self.address = sender, str(self._address)
        self.traffic = ByteCounter()
        self.connects = self.resent = 0
        self._generation = secrets.token_hex(NONCE_LETTERS // 2)  # distinguishes this Connection from an earlier one
        self._sequence = self._hangups = 0
        self._socket: ClientSocket | None = None
        self._calling = threading.Lock()
        self._closed = threading.Event()
        self._heartbeats: threading.Thread | None = None

    @property
    def is_connected(self) -> bool:
        """Whether the connection was open when it was last used."""
        return self._socket is not None

    def call(self, message: Message) -> Message:
        """Send a message and return the server's answer; sender and sequence number are filled in.

        If the connection breaks, the message is sent again; the server handles it once.

        Raises:
            PeerLostError: the server cannot be reached.
            FrameError: a frame was damaged twice.
            ProtocolError: the server's handler raised; with that text.
            ClosedError: the connection was closed, before this call or during it.
        """
        check_kind(message, "Connection")
        self._check_open()
        with self._calling:
            self._check_open()
            self._sequence += 1
            message = with_sequence(message, self.sender, self._sequence)
            frame = encode_frame(message, self._fingerprint, self._secret is not None)
            return self._send_with_retry(frame, message)

    def close(self) -> None:
        """Say goodbye, so that the server does not report this worker as lost. Calls of other threads end at once."""
        self._closed.set()
        if (sock := self._socket) is not None and self._calling.locked():
            sock.interrupt()
        with self._calling:
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.send(self._socket.channel.control_frame(BYE, self.sender), BYE)
            self._disconnect()
        if self._heartbeats is not None:
            self._heartbeats.join()

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise ClosedError(f"{self.sender}: the connection to {self.address} was closed here; make a new one")

    def _send_with_retry(self, frame: bytearray, message: Message) -> Message:
        started = last_received = time.monotonic()
        times_sent, pause = 0, _FIRST_PAUSE_S
        damaged = -1 if self._socket is not None else 0  # the first damage on an open connection may be an older one's
        while True:
            try:
                sock = self._socket or self._connect()
                self._check_open()  # `close` may have been called while there was no socket to interrupt
                if len(frame) > sock.max_frame:
                    raise FrameError(
                        "too long",
                        f"a frame of {len(frame)} bytes; the server at {self.address} takes {sock.max_frame}",
                    )
                self.resent += bool(times_sent)
                times_sent += 1
                sock.send(frame, message.kind, message.payload.num_bytes)
                return self._read_answer(sock, message, started + self._timeout_s)
            except FrameError as error:
                damaged += 1
                self._disconnect()
                if damaged > 1 or error.reason not in TRANSIENT_REASONS:
                    raise
            except (OSError, EOFError) as error:
                last_received = max(last_received, self._socket.last_received if self._socket else 0.0)
                self._disconnect()
                self._check_open()
                now = time.monotonic()
                if now + pause > last_received + self._retry_s or now > started + self._timeout_s:
                    raise PeerLostError(
                        f"{self.sender}: the server at {self.address} is lost ({str(error) or 'hung up'}), "
                        f"tried for {now - last_received:.1f} s; check that it runs, or raise retry_s or timeout_s"
                    ) from error
                self._closed.wait(pause)
                self._check_open()
                pause = min(2 * pause, _MAX_PAUSE_S)

    def _read_answer(self, sock: ClientSocket, message: Message, deadline: float) -> Message:
        while True:
            reply = sock.read(self._max_frame)
            if reply.kind == REJECTED and not 0 < reply.sequence < message.sequence:
                reason = str(reply.fields.get("reason"))
                hint = f"; does another worker use the name {self.sender!r}?" if reason == "old sequence" else ""
                raise FrameError(
                    reason, f"the server at {self.address} rejected a {message.kind!r} message: {reason}{hint}"
                )
            if reply.kind not in (ALIVE, REJECTED) and reply.sequence == message.sequence:
                return expect_success(reply, message, f"the server at {self.address}")
            if reply.kind != ALIVE and reply.sequence > message.sequence:
                raise FrameError(
                    "old sequence", f"an answer to message {reply.sequence}, expected one to {message.sequence}"
                )
            if time.monotonic() > deadline:
                raise TimeoutError(f"alive, but no answer within {self._timeout_s:g} s")

    def _connect(self) -> ClientSocket:
        """Connect and do the handshake."""
        self.connects += 1
        channel = FrameChannel(self._fingerprint, self.traffic)
        sock = ClientSocket(self._address, self._context, self._handshake_s, channel)
        try:
            sock.max_frame = self._handshake(sock, channel)
        except FrameError as error:
            sock.close()
            if error.reason in ("forged", "unauthenticated", "sealed"):
                raise AuthenticationError(f"{self.sender}: the server at {self.address}: {error}") from error
            raise
        except ssl.SSLError as error:  # with TLS 1.3 a server rejects our certificate after its own handshake
            sock.close()
            raise AuthenticationError(f"{self.sender}: the server at {self.address}: {error}") from error
        except BaseException:
            sock.close()
            raise
        channel.handshake_done, sock.idle_timeout_s = True, self._idle_timeout_s
        self._socket = sock
        if self._heartbeats is None:
            self._heartbeats = threading.Thread(target=self._send_heartbeats, name="thinwire-beat", daemon=True)
            self._heartbeats.start()
        return sock

    def _handshake(self, sock: ClientSocket, channel: FrameChannel) -> int:
        """Authenticate both sides; return the longest frame that the server takes."""
        nonce = secrets.token_hex(NONCE_LETTERS // 2)
        words = {"nonce": nonce, "generation": self._generation}
        hello = Message(HELLO, self.sender, fields={"handshake": HANDSHAKE_VERSION, **words})
        sock.send(encode_frame(hello, self._fingerprint), HELLO)
        challenge = expect_kind(self._check_not_rejected(self._read_first(sock), channel), CHALLENGE)
        challenge = expect_version(challenge, f"the server at {self.address}")
        server_nonce, salt = expect_nonce(challenge), expect_nonce(challenge, "salt")
        channel.authenticator = make_authenticator(self._secret, False, channel, hello, server_nonce, salt)
        sock.send(channel.control_frame(PROOF, self.sender), PROOF)
        ready = self._check_not_rejected(sock.read(HANDSHAKE_BYTES, may_be_rejection=True), channel)
        expect_kind(ready, READY)
        limit = ready.fields.get("max_frame")
        return limit if isinstance(limit, int) else MAX_FRAME

    def _read_first(self, sock: ClientSocket) -> Message:
        """The server's first frame. A server that rejects our certificate may just close; so may an overloaded one."""
        try:
            message = sock.read(HANDSHAKE_BYTES)
        except (EOFError, ConnectionError) as error:
            self._hangups += self._context is not None
            if self._hangups < _MAX_HANGUPS:
                raise
            text = f"the server at {self.address} closes each connection at once; check that it trusts our certificate"
            raise AuthenticationError(f"{self.sender}: {text}") from error
        self._hangups = 0
        return message

    def _check_not_rejected(self, message: Message, channel: FrameChannel) -> Message:
        if message.kind != REJECTED:
            return message
        reason, text = str(message.fields.get("reason")), str(message.fields.get("text"))
        if reason == "fingerprint":
            found = describe_differences(self._settings, message.fields.get("settings"))
            found = found or f"fingerprint: {channel.fingerprint:016x} here, {channel.peer_fingerprint:016x} there"
            raise ConfigMismatch(f"{self.sender}: the server at {self.address} has other settings: {found}")
        prefix = f"{self.sender}: the server at {self.address} rejected the connection"
        if reason == "certificate name":
            raise AuthenticationError(f"{prefix}: {text!r:.500}")
        if reason == "handshake version":
            raise FrameError(reason, f"{prefix}: {text!r:.500}")
        if reason in ("forged", "unauthenticated", "sealed", "wrong secret"):
            raise AuthenticationError(f"{prefix}: {reason}; give both sides the same secret")
        raise FrameError(reason, f"{prefix}: {reason}")

    def _disconnect(self) -> None:
        sock, self._socket = self._socket, None
        if sock is not None:
            sock.close()

    def _send_heartbeats(self) -> None:
        while not self._closed.wait(self._heartbeat_s):
            sock = self._socket
            if sock is not None:
                with contextlib.suppress(OSError, ValueError):  # the next call notices and reconnects
                    sock.send(sock.channel.control_frame(ALIVE, self.sender), ALIVE)
