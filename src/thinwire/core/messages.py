"""Messages between a server and its workers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .errors import ProtocolError
from .payloads import Payload

Scalar: TypeAlias = str | int | float | bool | None
Field: TypeAlias = Scalar | Sequence[Scalar]

MAX_NAME_BYTES = 255  # of a kind or a sender
_SURROGATE = re.compile("[\ud800-\udfff]")
_WORD = 1 << 63  # limit of rounds, sequence numbers and integer fields


@dataclass(frozen=True, eq=False)
class Message:
    """One message: small `fields`, and tensors in the payload as vectors (shapes are known to both sides).

    Args:
        kind: what the message is, such as "push".
        sender: the name of the sender, unique among the clients of one server; set by the connection.
        round: the round it belongs to.
        sequence: counts the sender's messages, so that repeated ones are recognized; set by the connection.
        fields: texts, finite numbers, booleans, None, or lists of those.
        payload: tensors.
    """

    kind: str
    sender: str = ""
    round: int = 0
    sequence: int = 0
    fields: Mapping[str, Field] = field(default_factory=dict)
    payload: Payload = field(default_factory=lambda: Payload(()))

    def __post_init__(self) -> None:
        if not self.kind:
            raise ProtocolError("Message: kind must not be empty, such as 'push'")
        for name in ("kind", "sender"):
            if not is_text(getattr(self, name)) or len(getattr(self, name).encode()) > MAX_NAME_BYTES:
                raise ProtocolError(f"Message: {name} must be a text of at most {MAX_NAME_BYTES} bytes")
        for name in ("round", "sequence"):
            number = getattr(self, name)
            if not isinstance(number, int) or not 0 <= number < _WORD:
                raise ProtocolError(f"Message: {name} must be an integer from 0 to 2^63 - 1, got {number!r:.60}")
        for name, value in self.fields.items():
            if not is_text(name) or not all(map(is_scalar, value if isinstance(value, list | tuple) else (value,))):
                raise ProtocolError(
                    f"Message: field {name!r:.60} must be a text, a finite number, a boolean, None or a list of those; "
                    "put tensors into the payload"
                )


def is_text(value: Any) -> bool:
    """Whether it is a text that UTF-8 can encode, without lone surrogates."""
    return isinstance(value, str) and _SURROGATE.search(value) is None


def is_scalar(value: Any) -> bool:
    """Whether it may be a field of a message: a text, a finite number within range, a boolean or None."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return -_WORD <= value < _WORD
    return value is None or is_text(value)
