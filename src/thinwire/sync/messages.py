"""Messages between a server and its workers: their fields, and rejections with a reason."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from ..core import Message, Payload, ProtocolError, ThinwireError

EMPTY = Payload(())

SERVER = "server"  # the sender of every reply
INTERNAL = "internal"  # an error of the server itself
NO_UPDATE = "no update"  # a client has reported that it has no update in this round
UNKNOWN, CONFIG, OUT_OF_SYNC, MEMORY = "unknown", "config", "out of sync", "memory"
JOIN_AGAIN = (UNKNOWN, CONFIG, OUT_OF_SYNC, MEMORY)  # reasons after which a worker has to join again
NO_STRIKE = (UNKNOWN, MEMORY, INTERNAL, NO_UPDATE)  # reasons that do not count against a client
MAX_INT = 2**53  # the largest integer that every JSON reader keeps exactly


class Rejected(ThinwireError):
    """The server rejects a message. `reason` is a word for counting, the text says what was wrong."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason

    def reply(self, to: Message) -> Message:
        """The message that tells the sender."""
        return reply(to, "rejected", {"reason": self.reason, "text": str(self)})


def dispatch(
    message: Message,
    handlers: Mapping[str, Callable[[Message], Message]],
    on_rejected: Callable[[Rejected], None],
) -> Message:
    """The reply of the handler for this kind of message; `on_rejected` is called before a rejection is returned."""
    try:
        if message.kind not in handlers:
            raise Rejected("kind", f"unknown kind of message {message.kind!r}; there are {', '.join(handlers)}")
        return handlers[message.kind](message)
    except Rejected as rejection:
        on_rejected(rejection)
        return rejection.reply(message)


def reply(
    to: Message, kind: str, fields: Mapping[str, Any] | None = None, payload: Payload = EMPTY, round: int = 0
) -> Message:
    """A reply of the server; the round of `to` is repeated if it is valid."""
    their_round = to.round if type(to.round) is int and 0 <= to.round <= MAX_INT else 0
    return Message(kind, SERVER, round or their_round, to.sequence, fields or {}, payload)


def int_field(message: Message, name: str, minimum: int = 0, maximum: int = MAX_INT) -> int:
    """An integer field of a worker's message; Rejected for anything else, such as 3.0, true and "3"."""
    value = message.fields.get(name)
    if type(value) is not int or not minimum <= value <= maximum:
        raise Rejected(
            "fields", f"{message.kind}: {name} must be an integer from {minimum} to {maximum}, got {value!r}"
        )
    return value


def require_int(message: Message, name: str) -> int:
    """An integer field of a server's reply; ProtocolError for anything else."""
    value = message.fields.get(name)
    if type(value) is not int:
        raise ProtocolError(f"{message.kind} from {message.sender}: {name} must be an integer, got {value!r:.60}")
    return value


def check_last_accepted(message: Message, ours: int) -> None:
    """Under EF21 both sides keep the same estimate; Rejected if one of them was resumed from an older checkpoint."""
    if (theirs := int_field(message, "last_accepted", -1)) != ours:
        raise Rejected(
            MEMORY, f"last accepted update: {theirs} according to {message.sender!r}, {ours} at the server; join again"
        )


def new_epoch() -> str:
    """A random word for the time from a server's start, or from loading its state, to its end.

    The `run_id` of a server is such a word, too, but it is stored: equal for all epochs of one training.
    """
    return secrets.token_hex(8)


def check_server_epoch(message: Message, epoch: str) -> None:
    """Rejected if the worker joined before the server was resumed: it may hold a model that this server never had."""
    if message.fields.get("server_epoch") != epoch:
        raise Rejected(UNKNOWN, f"the server was restarted since {message.sender!r} joined; join again")


def expect_step(message: Message) -> int:
    """The step or round of a worker's message."""
    if type(message.round) is not int or not 0 <= message.round <= MAX_INT:
        raise Rejected("round", f"{message.kind}: round must be an integer from 0, got {message.round!r}")
    return message.round


def reported_reason(message: Message) -> str:
    """The reason that a client gives, for the log: one short printable line."""
    reason = message.fields.get("reason")
    if not isinstance(reason, str):
        raise Rejected("fields", f"{message.kind}: reason must be a text, got {reason!r:.60}")
    return "".join(letter if letter.isprintable() else "?" for letter in reason[:200])
