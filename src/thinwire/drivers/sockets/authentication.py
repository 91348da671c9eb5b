"""Authentication by a shared secret: the key of a connection and the tags of its frames."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import struct
from pathlib import Path

from ...core import CompositionError

TAG_BYTES = 32
_MIN_BYTES = 16
_KEY_BYTES = 32
_SCRYPT = {"n": 2**15, "r": 8, "p": 1, "maxmem": 64 << 20, "dklen": _KEY_BYTES}  # 32 MiB and about 0.1 s per guess
_MAX_SALTS = 8  # number of servers with a cached key
_HOW_TO_MAKE = "python -c 'import secrets; print(secrets.token_hex(32))' makes one"


class Secret:
    """A secret that only the server and its workers hold; never printed.

    32 random bytes written as 64 hexadecimal digits, or in base64, are used as a key directly. Anything else may
    be a guessable phrase, so its key is scrypt(secret, salt): each guess costs an attacker one scrypt.
    """

    __slots__ = ("_keys", "_value")

    def __init__(self, value: bytes) -> None:
        if len(value) < _MIN_BYTES:
            raise CompositionError(f"secret: at least {_MIN_BYTES} bytes are needed, got {len(value)}; {_HOW_TO_MAKE}")
        self._value = value
        self._keys: dict[str, bytes] = {}

    def __repr__(self) -> str:
        return "Secret(...)"

    def master_key(self, salt: str) -> bytes:
        """32 bytes for all connections to a server with this salt; computed once per salt."""
        if salt not in self._keys:
            if len(self._keys) >= _MAX_SALTS:
                del self._keys[next(iter(self._keys))]
            random = _random_key(self._value)
            self._keys[salt] = random or hashlib.scrypt(self._value, salt=f"thinwire {salt}".encode(), **_SCRYPT)
        return self._keys[salt]

    def session_key(self, salt: str, *facts: str) -> bytes:
        """The key of one connection, derived from the secret, the server's salt and the words of the handshake."""
        text = "\x1f".join(("thinwire frames 2", salt, *facts)).encode()
        return hmac.digest(self.master_key(salt), text, hashlib.sha256)


def _random_key(value: bytes) -> bytes | None:
    """The 32 bytes encoded by 64 hexadecimal digits or 44 letters of base64; None for any other text."""
    try:
        if len(value) == 2 * _KEY_BYTES:
            return binascii.unhexlify(value)
        key = base64.b64decode(value, validate=True) if len(value) == 44 else b""
    except binascii.Error:
        return None
    return key if len(key) == _KEY_BYTES else None


def read_secret(file: str | Path | None = None, environment: str | None = None) -> Secret:
    """Read a secret from a file that only its owner may read, or from an environment variable.

    Surrounding white space is ignored.

    Raises:
        CompositionError: neither or both are given, the secret is missing or too short, or others may read the file.
    """
    if (file is None) == (environment is None):
        raise CompositionError("secret: give either a file or the name of an environment variable")
    if environment is not None:
        if environment not in os.environ:
            raise CompositionError(f"secret: the environment variable {environment} is not set; {_HOW_TO_MAKE}")
        return Secret(os.environ[environment].strip().encode())
    path = Path(str(file))
    try:
        text, mode = path.read_bytes(), path.stat().st_mode
    except OSError as error:
        raise CompositionError(f"secret: cannot read {path}: {error.strerror}; {_HOW_TO_MAKE}") from error
    if mode & 0o077:
        raise CompositionError(f"secret: others may read or write {path} (mode {mode & 0o777:o}); chmod 600 {path}")
    return Secret(text.strip())


class FrameAuthenticator:
    """Tags of the frames of one connection: HMAC-SHA256 over direction, frame counter and the whole frame.

    Both sides count frames and never send the counter, so a frame that is replayed, dropped, reflected to its sender or
    taken from another connection has a wrong tag.
    """

    def __init__(self, key: bytes, is_server: bool) -> None:
        self._key = key
        self._directions = (b"s", b"c") if is_server else (b"c", b"s")
        self._counts = [0, 0]  # frames sent, frames received

    def tag(self, frame: bytes | bytearray) -> bytes:
        """The tag of the next frame to send."""
        return self._next(0, frame)

    def verify(self, tag: bytes | bytearray, *frame: bytes | bytearray) -> bool:
        """Whether this is the tag of the next frame of the peer; the frame is counted either way."""
        return hmac.compare_digest(self._next(1, *frame), tag)

    def _next(self, direction: int, *frame: bytes | bytearray) -> bytes:
        made = hmac.new(
            self._key, self._directions[direction] + struct.pack("<Q", self._counts[direction]), hashlib.sha256
        )
        self._counts[direction] += 1
        for piece in frame:
            made.update(piece)
        return made.digest()
