"""What a server and its workers say to one another."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .errors import ProtocolError
from .tensors import Payload

Scalar: TypeAlias = str | int | float | bool | None
Field: TypeAlias = Scalar | Sequence[Scalar]

MOST_NAME_BYTES = 255  # of a kind or a sender
_SURROGATE = re.compile("[\ud800-\udfff]")
_WORD = 1 << 63  # rounds, sequences and whole numbers among the fields are below it


@dataclass(frozen=True, eq=False)
class Message:
    """One thing said. Small remarks are `fields`; tensors go into the payload, as vectors: shapes are agreed.

    sender: its name among those who talk to one server. sequence: counts the sender's messages, so that a repeat is
    known for what it is; a `Connection` fills in both.
    """

    kind: str
    sender: str = ""
    round: int = 0
    sequence: int = 0
    fields: Mapping[str, Field] = field(default_factory=dict)
    payload: Payload = field(default_factory=lambda: Payload(()))

    def __post_init__(self) -> None:
        if not self.kind:
            raise ProtocolError("Message: kind is empty; name what is said, such as 'push'")
        for name in ("kind", "sender"):
            if not is_text(getattr(self, name)) or len(getattr(self, name).encode()) > MOST_NAME_BYTES:
                raise ProtocolError(f"Message: {name} must be a text of at most {MOST_NAME_BYTES} bytes")
        for name in ("round", "sequence"):
            number = getattr(self, name)
            if not isinstance(number, int) or not 0 <= number < _WORD:
                raise ProtocolError(f"Message: {name} must be a whole number from 0 to 2^63 - 1, got {number!r:.60}")
        for name, value in self.fields.items():
            if not is_text(name) or not all(map(is_scalar, value if isinstance(value, list | tuple) else (value,))):
                raise ProtocolError(
                    f"Message: field {name!r:.60} must be a text, a finite number, a truth, None or a list of those; "
                    "tensors go into the payload"
                )


def is_text(value: Any) -> bool:
    """A text that UTF-8 can hold: half a surrogate pair cannot be sent."""
    return isinstance(value, str) and _SURROGATE.search(value) is None


def is_scalar(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return -_WORD <= value < _WORD
    return value is None or is_text(value)
