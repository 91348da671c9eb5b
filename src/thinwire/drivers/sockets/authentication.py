"""A shared secret, and what two sides make of it for one connection."""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from pathlib import Path

from ...core import CompositionError

TAG_BYTES = 32
_LEAST_BYTES = 16
_MAKE_ONE = "python -c 'import secrets; print(secrets.token_hex(32))' makes one"


class Secret:
    """Bytes that server and workers hold and nobody else; never printed."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        if len(value) < _LEAST_BYTES:
            raise CompositionError(f"secret: at least {_LEAST_BYTES} bytes, got {len(value)}; {_MAKE_ONE}")
        self._value = value

    def __repr__(self) -> str:
        return "Secret(...)"

    def session_key(self, *facts: str) -> bytes:
        """A key for one connection: it follows from the secret, both nonces and who is talking."""
        text = "\x1f".join(("thinwire frames 1", *facts)).encode()
        return hmac.digest(self._value, text, hashlib.sha256)


def read_secret(file: str | Path | None = None, environment: str | None = None) -> Secret:
    """From a file that only its owner may read, or from an environment variable; surrounding blanks do not count."""
    if (file is None) == (environment is None):
        raise CompositionError("secret: give either a file or the name of an environment variable")
    if environment is not None:
        if environment not in os.environ:
            raise CompositionError(f"secret: there is no environment variable {environment}; {_MAKE_ONE}")
        return Secret(os.environ[environment].strip().encode())
    path = Path(str(file))
    try:
        text, mode = path.read_bytes(), path.stat().st_mode
    except OSError as error:
        raise CompositionError(f"secret: cannot read {path}: {error.strerror}; {_MAKE_ONE}") from error
    if mode & 0o077:
        raise CompositionError(f"secret: others may read or write {path} (mode {mode & 0o777:o}); chmod 600 {path}")
    return Secret(text.strip())


class Seal:
    """Tags of the frames of one connection: HMAC-SHA256 over direction, count and the whole frame.

    Both sides count frames and never send the count, so a frame that is repeated, left out, sent back to its sender or
    taken from another connection has a wrong tag.
    """

    def __init__(self, key: bytes, is_server: bool) -> None:
        self._key = key
        self._directions = (b"s", b"c") if is_server else (b"c", b"s")
        self._counts = [0, 0]  # frames sent, frames received

    def tag(self, frame: bytes | bytearray) -> bytes:
        return self._next(0, frame)

    def is_right(self, tag: bytes | bytearray, *frame: bytes | bytearray) -> bool:
        """Whether the next frame received is the peer's; it counts even if it is not."""
        return hmac.compare_digest(self._next(1, *frame), tag)

    def _next(self, way: int, *frame: bytes | bytearray) -> bytes:
        made = hmac.new(self._key, self._directions[way] + struct.pack("<Q", self._counts[way]), hashlib.sha256)
        self._counts[way] += 1
        for piece in frame:
            made.update(piece)
        return made.digest()
