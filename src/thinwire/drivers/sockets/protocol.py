"""The socket protocol, common to both ends: frames and their tags, the words of the handshake, byte counts."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from dataclasses import replace

from ...core import CompositionError, Field, FrameError, Message, ProtocolError, ThinwireError
from ...core.logs import get_logger
from ...wire import encode_frame, read_header
from ...wire.frames import HEADER_BYTES, check_rest, parse_rest
from ..meter import Traffic
from .authentication import TAG_BYTES, FrameAuthenticator, Secret

_log = get_logger(__name__)

# Kinds that begin with ~ are control messages of the transport.
HELLO, CHALLENGE, PROOF, READY = "~hello", "~challenge", "~proof", "~ready"
ALIVE, BYE, REJECTED, FAILED = "~alive", "~bye", "~rejected", "~failed"
CONTROL_KINDS = frozenset({HELLO, CHALLENGE, PROOF, READY, ALIVE, BYE, REJECTED, FAILED})
OTHER = "other"  # kinds without a row of their own
MAX_KINDS = 64
HANDSHAKE_VERSION = 3  # 2 had other names of kinds and fields; 1 had no salt and reported fingerprints only
HANDSHAKE_BYTES = 2048  # the longest frame of a handshake: the most that an unauthenticated peer makes us hold
LARGE = 1 << 20  # bytes of a frame that takes a while to check or authenticate: done outside of the event loop
NONCE_LETTERS = 32
CHUNK = 1 << 18  # bytes per call of send or recv; each completed call counts as activity
TRANSIENT_REASONS = frozenset({"checksum", "magic", "length", "forged"})  # damage in transit: send once more


class ByteCounter:
    """Bytes on sockets: `sent` and `received` are totals without TLS's own, `rows` has whole frames by kind of message.

    Peers choose the kinds of their messages, so there are at most MAX_KINDS rows and one called "other".
    """

    def __init__(self) -> None:
        self.sent = self.received = 0
        self.rows: dict[str, Traffic] = {}
        self._lock = threading.Lock()

    def add(self, sent: int = 0, received: int = 0) -> None:
        """Add bytes to the totals."""
        with self._lock:
            self.sent += sent
            self.received += received

    def add_frame(self, kind: str, payload_bytes: int = 0, sent: int = 0, received: int = 0) -> None:
        """Add one whole frame to the row of its kind."""
        with self._lock:
            if kind not in self.rows and kind not in CONTROL_KINDS and len(self.rows) >= MAX_KINDS:
                kind = OTHER
            self.rows.setdefault(kind, Traffic()).add(Traffic(1, 8.0 * payload_bytes, payload_bytes, sent, received))


class FrameChannel:
    """Reads and writes the frames of one connection; the owner of the socket moves the bytes.

    handshake_done: the peer is authenticated, and frames with another fingerprint are rejected.
    lost_framing: after damage, the start of the next frame is unknown.
    """

    def __init__(self, fingerprint: int, traffic: ByteCounter) -> None:
        self.fingerprint, self.traffic = fingerprint, traffic
        self.peer_fingerprint = 0  # from the frames of its handshake
        self.authenticator: FrameAuthenticator | None = None
        self.handshake_done = self.lost_framing = False

    def control_frame(
        self, kind: str, sender: str, fields: Mapping[str, Field] | None = None, sequence: int = 0
    ) -> bytearray:
        """Encode a control message."""
        message = Message(kind, sender, 0, sequence, fields or {})
        return encode_frame(message, self.fingerprint, self.authenticator is not None)

    def sealed_pieces(self, frame: bytearray, kind: str, payload_bytes: int = 0) -> list[bytes | bytearray]:
        """The frame and its tag, if there is a secret; counts the frame as sent."""
        pieces: list[bytes | bytearray] = [frame]
        if self.authenticator is not None:
            pieces.append(self.authenticator.tag(frame))
        self.traffic.add_frame(kind, payload_bytes, sent=sum(map(len, pieces)))
        return pieces

    def read_frame(self, limit: int, may_be_rejection: bool = False) -> Generator[int, bytearray, Message]:
        """Yield the number of bytes needed next, be resumed with them, and return the message.

        may_be_rejection: a server that rejects our handshake may be unable to authenticate its answer.
        """
        self.lost_framing = True  # until the frame is valid; after damage the start of the next frame is unknown
        first = yield HEADER_BYTES
        header = read_header(first, self.fingerprint if self.handshake_done else None, limit)
        self.peer_fingerprint = header.fingerprint
        authenticator = self.authenticator
        if header.sealed != (authenticator is not None) and not (may_be_rejection and not header.sealed):
            reason, verb = ("sealed", "has") if header.sealed else ("unauthenticated", "lacks")
            raise FrameError(reason, f"a frame {verb} an authentication tag; give both sides the same secret or none")
        rest = yield header.rest_bytes
        tag = (yield TAG_BYTES) if header.sealed else bytearray()
        is_authentic = authenticator is None or not header.sealed or authenticator.verify(tag, first, rest)
        check_rest(header, rest)  # first, because damage is more likely than forgery and has an answer of its own
        if not is_authentic:
            raise FrameError(
                "forged", "a frame has a wrong tag: the peer has another secret, or the frame was forged or replayed"
            )
        self.lost_framing = False
        message = parse_rest(header, rest)
        if may_be_rejection and authenticator is not None and not header.sealed and message.kind != REJECTED:
            raise FrameError("unauthenticated", "the peer did not prove that it holds the secret")
        received = len(first) + len(rest) + len(tag)
        kind = message.kind if self.handshake_done or message.kind in CONTROL_KINDS else OTHER
        self.traffic.add_frame(kind, message.payload.num_bytes, received=received)
        return message


def make_authenticator(
    secret: Secret | None, is_server: bool, channel: FrameChannel, hello: Message, nonce: str, salt: str
) -> FrameAuthenticator | None:
    """The authenticator of a connection: both ends derive the same key from the handshake; None without a secret."""
    if secret is None:
        return None
    own, peer = channel.fingerprint, channel.peer_fingerprint
    prints = (peer, own) if is_server else (own, peer)
    words = (str(hello.fields["nonce"]), nonce, hello.sender, str(hello.fields["generation"]))
    return FrameAuthenticator(secret.session_key(salt, *words, *(f"{each:016x}" for each in prints)), is_server)


def resume(reading: Generator[int, bytearray, Message], piece: bytearray) -> tuple[int, Message | None]:
    """Resume `FrameChannel.read_frame`; return the bytes it needs next, or the message.

    For thread pools, which a StopIteration cannot leave.
    """
    try:
        return reading.send(piece), None
    except StopIteration as done:
        return 0, done.value


def expect_version(message: Message, peer: str) -> Message:
    """Raise FrameError if the peer speaks another handshake; its proof would fail without naming the cause."""
    version = message.fields.get("handshake", 1)
    if version != HANDSHAKE_VERSION:
        raise FrameError(
            "handshake version",
            f"{peer} has version {version!r:.20} of the handshake, this side {HANDSHAKE_VERSION}; run the same version "
            "of thinwire on both",
        )
    return message


def expect_kind(message: Message, kind: str) -> Message:
    """Raise FrameError if the message has another kind."""
    if message.kind != kind:
        raise FrameError("handshake", f"{kind} expected, got {message.kind!r:.40}")
    return message


def expect_nonce(message: Message, name: str = "nonce") -> str:
    """The nonce in a field; FrameError if it has another length."""
    value = message.fields.get(name)
    if not isinstance(value, str) or len(value) != NONCE_LETTERS:
        raise FrameError("handshake", f"{message.kind}: {name} must have {NONCE_LETTERS} letters")
    return value


def check_heartbeat(heartbeat_s: float, idle_timeout_s: float, part: str) -> None:
    """Raise CompositionError if heartbeats come too rarely to keep a connection alive."""
    if not 0 < heartbeat_s < idle_timeout_s:
        raise CompositionError(
            f"{part}: heartbeat_s must be positive and below idle_timeout_s={idle_timeout_s:g}, got {heartbeat_s:g}"
        )


def check_kind(message: Message, part: str) -> None:
    """Raise ProtocolError if the message has a kind that is reserved for the transport."""
    if message.kind.startswith("~"):
        raise ProtocolError(f"{part}: kinds that begin with ~ are reserved for the transport, got {message.kind!r}")


def failure_reply(error: Exception, message: Message, server: str) -> Message:
    """The reply after an error of the handler: the text of a ThinwireError; any other error is logged here."""
    if isinstance(error, ThinwireError):
        text = f"{type(error).__name__}: {error}"
    else:
        _log.error("the handler failed on a %r message of %s", message.kind, message.sender, exc_info=error)
        text = "internal error of the server; see its log"
    fields = {"reason": text[:1000].encode(errors="replace").decode()}
    return Message(FAILED, server, message.round, message.sequence, fields)


def expect_success(reply: Message, message: Message, server: str) -> Message:
    """Raise ProtocolError if the reply says that the handler raised."""
    if reply.kind == FAILED:
        raise ProtocolError(f"{server} failed on a {message.kind!r} message: {reply.fields.get('reason')}")
    return reply


def with_sequence(message: Message, sender: str, sequence: int) -> Message:
    """The message with its sender and sequence number."""
    return replace(message, sender=sender, sequence=sequence)
