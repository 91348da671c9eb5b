"""What a server and its workers say to one another, and how a server says no."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from ..core import Message, Payload, ProtocolError, ThinwireError

NOTHING = Payload(())

SERVER = "server"  # the sender of every reply
JOIN_AGAIN = ("unknown", "form", "have", "memory")  # reasons after which a worker and its server must agree anew
NO_UPDATE = "no update"  # the answer of a client that trained in vain: the round closes without it
INTERNAL = "internal"  # an error of the server itself
BLAMELESS = ("unknown", "memory", INTERNAL, NO_UPDATE)  # reasons that are the server's, or an honest word: no strikes
MOST = 2**53  # whole numbers that every JSON reader keeps exactly


class Refused(ThinwireError):
    """A message the server does not take. `reason` is one word to count by, the text says what was wrong."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason

    def reply(self, to: Message) -> Message:
        return reply(to, "refused", {"reason": self.reason, "text": str(self)})


def answered(
    message: Message, doors: Mapping[str, Callable[[Message], Message]], refused: Callable[[Refused], None]
) -> Message:
    """The reply of the door that is called like the message; `refused` is told what was, before its sender is."""
    try:
        if message.kind not in doors:
            raise Refused("kind", f"no message is called {message.kind!r}; there are {', '.join(doors)}")
        return doors[message.kind](message)
    except Refused as refusal:
        refused(refusal)
        return refusal.reply(message)


def reply(
    to: Message, kind: str, fields: Mapping[str, Any] | None = None, payload: Payload = NOTHING, round: int = 0
) -> Message:
    """What `to` has for a round may be nonsense, and is not repeated then."""
    theirs = to.round if type(to.round) is int and 0 <= to.round <= MOST else 0
    return Message(kind, SERVER, round or theirs, to.sequence, fields or {}, payload)


def whole(message: Message, name: str, least: int = 0, most: int = MOST) -> int:
    """A field that must be a whole number; 3.0, true and "3" are none."""
    value = message.fields.get(name)
    if type(value) is not int or not least <= value <= most:
        raise Refused("fields", f"{message.kind}: {name} must be a whole number from {least} to {most}, got {value!r}")
    return value


def check_settled(message: Message, ours: int) -> None:
    """Under ef21 both sides hold the same belief; one that was resumed from a checkpoint does not any more."""
    if (theirs := whole(message, "settled", -1)) != ours:
        raise Refused("memory", f"last accepted: {theirs} for {message.sender!r}, {ours} for the server; join again")


def new_life() -> str:
    """A word for the time from a server's start, or from loading its state, to its end; nothing is computed from it.

    A server's `run` is such a word, too, but is stored: the same for all lives of one training.
    """
    return secrets.token_hex(8)


def check_life(message: Message, life: str) -> None:
    """Who joined before the server was resumed may hold a model that it never had: counts alone do not tell."""
    if message.fields.get("life") != life:
        raise Refused("unknown", f"the server was started anew since {message.sender!r} joined; join again")


def told(message: Message, name: str) -> int:
    """A whole number that a reply must have."""
    value = message.fields.get(name)
    if type(value) is not int:
        raise ProtocolError(f"{message.kind} from {message.sender}: {name} must be a whole number, got {value!r:.60}")
    return value


def expect_step(message: Message) -> int:
    if type(message.round) is not int or not 0 <= message.round <= MOST:
        raise Refused("round", f"{message.kind}: round must be a whole number from 0, got {message.round!r}")
    return message.round


def reported_reason(message: Message) -> str:
    """The text with which a client explains itself: for the log, so it is one short printable line."""
    reason = message.fields.get("reason")
    if not isinstance(reason, str):
        raise Refused("fields", f"{message.kind}: reason must be a text, got {reason!r:.60}")
    return "".join(letter if letter.isprintable() else "?" for letter in reason[:200])
