"""What both ends of a connection do alike: reading and sealing frames, words of the handshake, counting bytes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator, Mapping
from dataclasses import replace

from ...core import CompositionError, Field, FrameError, Message, ProtocolError, ThinwireError
from ...wire import encode_frame, read_header
from ...wire.frames import HEADER_BYTES, check_rest, parse_rest
from ..meter import Traffic
from .authentication import TAG_BYTES, Seal, Secret

_log = logging.getLogger(__name__)

# Kinds that begin with ~ are the transport's own.
HELLO, CHALLENGE, PROOF, READY = "~hello", "~challenge", "~proof", "~ready"
ALIVE, BYE, REFUSED, FAILED = "~alive", "~bye", "~refused", "~failed"
OWN = frozenset({HELLO, CHALLENGE, PROOF, READY, ALIVE, BYE, REFUSED, FAILED})
OTHER = "other"  # kinds that have no row of their own
MOST_KINDS = 64
HANDSHAKE = 2  # the version of it; 1 had no salt, and told a difference of settings by fingerprints alone
HANDSHAKE_BYTES = 2048  # no frame of a handshake is longer, so nobody unknown makes us hold more
LARGE = 1 << 20  # bytes of a frame that takes a while to check or seal: an event loop has that done elsewhere
NONCE_LETTERS = 32
CHUNK = 1 << 18  # bytes handed to or taken from the system at once; each is a sign of life
PASSING = frozenset({"checksum", "magic", "length", "forged"})  # damage on the way: worth sending once more


class Crossings:
    """Bytes as they cross sockets: `sent` and `received` have all but TLS's own, `rows` has whole frames by kind.

    A peer chooses what it calls its messages, so there are at most MOST_KINDS rows, and "other".
    """

    def __init__(self) -> None:
        self.sent = self.received = 0
        self.rows: dict[str, Traffic] = {}
        self._lock = threading.Lock()

    def add(self, sent: int = 0, received: int = 0) -> None:
        with self._lock:
            self.sent += sent
            self.received += received

    def frame(self, kind: str, payload_bytes: int = 0, sent: int = 0, received: int = 0) -> None:
        with self._lock:
            if kind not in self.rows and kind not in OWN and len(self.rows) >= MOST_KINDS:
                kind = OTHER
            self.rows.setdefault(kind, Traffic()).add(Traffic(1, 8.0 * payload_bytes, payload_bytes, sent, received))


class Line:
    """One connection's frames, without its socket.

    known: the handshake is done. astray: where the next frame begins is no longer known.
    """

    def __init__(self, fingerprint: int, traffic: Crossings) -> None:
        self.fingerprint, self.traffic = fingerprint, traffic
        self.theirs = 0  # the peer's fingerprint, as its frames of the handshake have it
        self.seal: Seal | None = None
        self.known = self.astray = False

    def own(self, kind: str, sender: str, fields: Mapping[str, Field] | None = None, sequence: int = 0) -> bytearray:
        """A frame of the transport's own."""
        return encode_frame(Message(kind, sender, 0, sequence, fields or {}), self.fingerprint, self.seal is not None)

    def outgoing(self, frame: bytearray, kind: str, payload_bytes: int = 0) -> list[bytes | bytearray]:
        """What goes over the socket for a frame, which then counts as sent."""
        pieces: list[bytes | bytearray] = [frame] if self.seal is None else [frame, self.seal.tag(frame)]
        self.traffic.frame(kind, payload_bytes, sent=sum(map(len, pieces)))
        return pieces

    def incoming(self, limit: int, may_be_refusal: bool = False) -> Generator[int, bytearray, Message]:
        """Yields how many bytes it wants next and is resumed with them; returns the message.

        may_be_refusal: who refuses our handshake may be unable to seal it.
        """
        self.astray = True  # until it is known to be a frame; after damage nothing tells where the next one begins
        first = yield HEADER_BYTES
        header = read_header(first, self.fingerprint if self.known else None, limit)
        self.theirs = header.fingerprint
        seal = self.seal
        if header.sealed != (seal is not None) and not (may_be_refusal and not header.sealed):
            reason, text = ("sealed", "has") if header.sealed else ("unauthenticated", "lacks")
            raise FrameError(
                reason, f"a frame {text} the tag of a shared secret; give both sides the same secret or none"
            )
        rest = yield header.rest_bytes
        tag = (yield TAG_BYTES) if header.sealed else bytearray()
        right = seal is None or not header.sealed or seal.is_right(tag, first, rest)
        check_rest(header, rest)  # first, because damage is more likely than forgery and has its own answer
        if not right:
            raise FrameError(
                "forged", "a frame's tag is wrong: another secret, or a frame forged, repeated or sent back"
            )
        self.astray = False
        message = parse_rest(header, rest)
        if may_be_refusal and seal is not None and not header.sealed and message.kind != REFUSED:
            raise FrameError("unauthenticated", "the peer did not prove that it holds the secret")
        received = len(first) + len(rest) + len(tag)
        kind = message.kind if self.known or message.kind in OWN else OTHER
        self.traffic.frame(kind, message.payload.num_bytes, received=received)
        return message


def seal_of(secret: Secret | None, is_server: bool, line: Line, hello: Message, nonce: str, salt: str) -> Seal | None:
    """Both ends make the same key of what was said in the open."""
    if secret is None:
        return None
    prints = (line.theirs, line.fingerprint) if is_server else (line.fingerprint, line.theirs)
    words = (str(hello.fields["nonce"]), nonce, hello.sender, str(hello.fields["generation"]))
    return Seal(secret.session_key(salt, *words, *(f"{each:016x}" for each in prints)), is_server)


def resume(reading: Generator[int, bytearray, Message], piece: bytearray) -> tuple[int, Message | None]:
    """How many bytes `Line.incoming` wants next, or the message. A StopIteration cannot leave a thread of a pool."""
    try:
        return reading.send(piece), None
    except StopIteration as done:
        return 0, done.value


def expect_version(message: Message, who: str) -> Message:
    """Another handshake would end in a proof that fails, which says nothing about its cause."""
    theirs = message.fields.get("handshake", 1)
    if theirs != HANDSHAKE:
        text = (
            f"{who} has version {theirs!r:.20} of the handshake, this side {HANDSHAKE}; run the same thinwire on both"
        )
        raise FrameError("handshake version", text)
    return message


def expect_kind(message: Message, kind: str) -> Message:
    if message.kind != kind:
        raise FrameError("handshake", f"{kind} expected, got {message.kind!r:.40}")
    return message


def expect_nonce(message: Message, name: str = "nonce") -> str:
    value = message.fields.get(name)
    if not isinstance(value, str) or len(value) != NONCE_LETTERS:
        raise FrameError("handshake", f"{message.kind}: {name} must have {NONCE_LETTERS} letters")
    return value


def check_beats(heartbeat_s: float, silence_s: float, who: str) -> None:
    if not 0 < heartbeat_s < silence_s:
        raise CompositionError(f"{who}: heartbeat_s={heartbeat_s:g} must be below silence_s={silence_s:g}")


def check_kind(message: Message, part: str) -> None:
    if message.kind.startswith("~"):
        raise ProtocolError(f"{part}: kinds that begin with ~ are the transport's own, got {message.kind!r}")


def failure(error: Exception, message: Message, server: str) -> Message:
    """The reply to a message whose handler raised: a ThinwireError is told, any other is logged here."""
    if isinstance(error, ThinwireError):
        text = f"{type(error).__name__}: {error}"
    else:
        _log.error("the handler failed on a %r of %s", message.kind, message.sender, exc_info=error)
        text = "an error of the server; its log tells more"
    fields = {"reason": text[:1000].encode(errors="replace").decode()}
    return Message(FAILED, server, message.round, message.sequence, fields)


def expect_success(reply: Message, message: Message, server: str) -> Message:
    if reply.kind == FAILED:
        raise ProtocolError(f"{server} failed on a {message.kind!r}: {reply.fields.get('reason')}")
    return reply


def numbered(message: Message, sender: str, sequence: int) -> Message:
    return replace(message, sender=sender, sequence=sequence)
