"""A worker's line to its server, a `Transport`: calls, is answered, and mends the line if it breaks."""

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
from .settings import described, differences
from .talking import (
    ALIVE,
    BYE,
    CHALLENGE,
    HANDSHAKE,
    HANDSHAKE_BYTES,
    HELLO,
    NONCE_LETTERS,
    PASSING,
    PROOF,
    READY,
    REFUSED,
    Crossings,
    Line,
    check_beats,
    check_kind,
    expect_kind,
    expect_nonce,
    expect_success,
    expect_version,
    numbered,
    seal_of,
)
from .tls import Tls
from .wires import Wire

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_MOST_HUNG_UP = 3  # times in a row


class Connection(ClosedOnExit):
    """Talks to one Listener under the name `sender`; it connects at the first `call`.

    silence_s: a server from which nothing comes for so long is called again. retry_s: after so long in vain it is lost.
    timeout_s: an answer must be there by then even if the server is alive. While it is open, a thread tells the
    server every heartbeat_s that this peer lives. For the other settings see `Listener`.

    traffic: bytes that crossed. connects: how often the server was called. resent: messages sent more than once.
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
        silence_s: float = 5.0,
        heartbeat_s: float = 1.0,
        retry_s: float = 30.0,
        timeout_s: float = 600.0,
    ) -> None:
        if not sender:
            raise CompositionError("Connection: the sender has no name; 'worker 3' would do")
        check_beats(heartbeat_s, silence_s, "Connection")
        self._where = parse_address(address)
        check_exposure(self._where, secret is not None or tls is not None, tls, "Connection")
        self._context = None if tls is None else tls.client_context()
        self._secret, self._fingerprint, self._max_frame = secret, fingerprint, max_frame
        self._settings = described(settings or {})
        self._handshake_s, self._silence_s, self._heartbeat_s = handshake_s, silence_s, heartbeat_s
        self._retry_s, self._timeout_s = retry_s, timeout_s
        self.sender, self.address = sender, str(self._where)
        self.traffic = Crossings()
        self.connects = self.resent = 0
        self._generation = secrets.token_hex(NONCE_LETTERS // 2)  # tells this Connection from an earlier one
        self._sequence = self._hung_up = 0
        self._wire: Wire | None = None
        self._asking = threading.Lock()
        self._closed = threading.Event()
        self._beating: threading.Thread | None = None

    @property
    def is_connected(self) -> bool:
        """The line was open when it was last used."""
        return self._wire is not None

    def call(self, message: Message) -> Message:
        """The server's answer. Sender and sequence are filled in; however often it is sent, it is handled once.

        Raises:
            PeerLostError: the server is not there.
            FrameError: damage that a second sending does not mend.
            ProtocolError: the server's handler raised; with that text.
            ClosedError: the connection was closed, before this call or during it.
        """
        check_kind(message, "Connection")
        self._check_open()
        with self._asking:
            self._check_open()
            self._sequence += 1
            message = numbered(message, self.sender, self._sequence)
            frame = encode_frame(message, self._fingerprint, self._secret is not None)
            return self._insist(frame, message)

    def close(self) -> None:
        """Take leave, so that the server does not think this peer lost. A call of another thread ends at once."""
        self._closed.set()
        if (wire := self._wire) is not None and self._asking.locked():
            wire.interrupt()
        with self._asking:
            if self._wire is not None:
                with contextlib.suppress(OSError):
                    self._wire.send(self._wire.line.own(BYE, self.sender), BYE)
            self._hang_up()
        if self._beating is not None:
            self._beating.join()

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise ClosedError(f"{self.sender}: the connection to {self.address} was closed here; make another one")

    def _insist(self, frame: bytearray, message: Message) -> Message:
        began = heard = time.monotonic()
        sent, pause = 0, _FIRST_PAUSE_S
        damaged = -1 if self._wire is not None else 0  # what an open line shows first may be an earlier one's trouble
        while True:
            try:
                wire = self._wire or self._connect()
                self._check_open()  # `close` may have come while there was no line to interrupt
                if len(frame) > wire.max_frame:
                    raise FrameError(
                        "too long", f"{len(frame)} bytes; the server at {self.address} takes {wire.max_frame}"
                    )
                self.resent += bool(sent)
                sent += 1
                wire.send(frame, message.kind, message.payload.num_bytes)
                return self._answer(wire, message, began + self._timeout_s)
            except FrameError as error:
                damaged += 1
                self._hang_up()
                if damaged > 1 or error.reason not in PASSING:
                    raise
            except (OSError, EOFError) as error:
                heard = max(heard, self._wire.heard if self._wire else 0.0)
                self._hang_up()
                self._check_open()
                now = time.monotonic()
                if now + pause > heard + self._retry_s or now > began + self._timeout_s:
                    raise PeerLostError(
                        f"{self.sender}: the server at {self.address} is lost ({str(error) or 'hung up'}), "
                        f"tried for {now - heard:.1f} s; look whether it runs, or raise retry_s or timeout_s"
                    ) from error
                self._closed.wait(pause)
                self._check_open()
                pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _answer(self, wire: Wire, message: Message, deadline: float) -> Message:
        while True:
            reply = wire.read(self._max_frame)
            if reply.kind == REFUSED and not 0 < reply.sequence < message.sequence:
                reason = str(reply.fields.get("reason"))
                hint = f"; is another called {self.sender!r}, too?" if reason == "old sequence" else ""
                raise FrameError(reason, f"the server at {self.address} refused a {message.kind!r}: {reason}{hint}")
            if reply.kind not in (ALIVE, REFUSED) and reply.sequence == message.sequence:
                return expect_success(reply, message, f"the server at {self.address}")
            if reply.kind != ALIVE and reply.sequence > message.sequence:
                raise FrameError("old sequence", f"an answer to {reply.sequence} while {message.sequence} was asked")
            if time.monotonic() > deadline:
                raise TimeoutError(f"alive, but no answer within {self._timeout_s:g} s")

    def _connect(self) -> Wire:
        """Connect and prove who we are."""
        self.connects += 1
        wire = Wire(self._where, self._context, self._handshake_s, Line(self._fingerprint, self.traffic))
        try:
            nonce = secrets.token_hex(NONCE_LETTERS // 2)
            words = {"nonce": nonce, "generation": self._generation}
            hello = Message(HELLO, self.sender, fields={"handshake": HANDSHAKE, **words})
            wire.send(encode_frame(hello, self._fingerprint), HELLO)
            challenge = expect_kind(self._not_refused(self._first_words(wire), wire.line), CHALLENGE)
            challenge = expect_version(challenge, f"the server at {self.address}")
            theirs, salt = expect_nonce(challenge), expect_nonce(challenge, "salt")
            wire.line.seal = seal_of(self._secret, False, wire.line, hello, theirs, salt)
            wire.send(wire.line.own(PROOF, self.sender), PROOF)
            ready = self._not_refused(wire.read(HANDSHAKE_BYTES, may_be_refusal=True), wire.line)
            expect_kind(ready, READY)
            limit = ready.fields.get("max_frame")
            wire.max_frame = limit if isinstance(limit, int) else MAX_FRAME
        except FrameError as error:
            wire.close()
            if error.reason in ("forged", "unauthenticated", "sealed"):
                raise AuthenticationError(f"{self.sender}: the server at {self.address}: {error}") from error
            raise
        except ssl.SSLError as error:  # with TLS 1.3 a server's refusal of our certificate comes late
            wire.close()
            raise AuthenticationError(f"{self.sender}: the server at {self.address}: {error}") from error
        except BaseException:
            wire.close()
            raise
        wire.line.known, wire.silence_s = True, self._silence_s
        self._wire = wire
        if self._beating is None:
            self._beating = threading.Thread(target=self._beat, name="thinwire-beat", daemon=True)
            self._beating.start()
        return wire

    def _first_words(self, wire: Wire) -> Message:
        """Who does not like our certificate may just hang up; so may a server that is overrun, but not for ever."""
        try:
            words = wire.read(HANDSHAKE_BYTES)
        except (EOFError, ConnectionError) as error:
            self._hung_up += self._context is not None
            if self._hung_up < _MOST_HUNG_UP:
                raise
            text = f"the server at {self.address} hangs up at once; look whether it trusts our certificate"
            raise AuthenticationError(f"{self.sender}: {text}") from error
        self._hung_up = 0
        return words

    def _not_refused(self, message: Message, line: Line) -> Message:
        if message.kind != REFUSED:
            return message
        reason, text = str(message.fields.get("reason")), str(message.fields.get("text"))
        if reason == "fingerprint":
            found = differences(self._settings, message.fields.get("settings"))
            found = found or f"fingerprint: {line.fingerprint:016x} here, {line.theirs:016x} there"
            raise ConfigMismatch(f"{self.sender}: the server at {self.address} trains with other settings: {found}")
        if reason == "certificate name":
            raise AuthenticationError(f"{self.sender}: the server at {self.address} refused us: {text!r:.500}")
        if reason == "handshake version":
            raise FrameError(reason, f"{self.sender}: the server at {self.address} refused us: {text!r:.500}")
        if reason in ("forged", "unauthenticated", "sealed", "wrong secret"):
            raise AuthenticationError(
                f"{self.sender}: the server at {self.address} refused us: {reason}; give both the same secret"
            )
        raise FrameError(reason, f"{self.sender}: the server at {self.address} refused us: {reason}")

    def _hang_up(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()

    def _beat(self) -> None:
        while not self._closed.wait(self._heartbeat_s):
            wire = self._wire
            if wire is not None:
                with contextlib.suppress(OSError, ValueError):  # whoever asks next will find out and mend it
                    wire.send(wire.line.own(ALIVE, self.sender), ALIVE)
