"""Settings that both ends of a connection must share: short texts of them, and a description of differences."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

_MAX_SETTINGS, _MAX_LETTERS = 8, 90  # so that all fit into a frame of the handshake, whatever the characters


def describe_settings(settings: Mapping[str, object]) -> list[str]:
    """Alternating names and values; a long value is cut and ends with a digest of the whole."""
    flat: list[str] = []
    for name, value in list(settings.items())[:_MAX_SETTINGS]:
        text = str(value).encode("unicode_escape").decode()
        if len(text) > _MAX_LETTERS:
            digest = hashlib.sha256(text.encode()).hexdigest()[:8]
            text = f"{text[: _MAX_LETTERS - 14]}... ({digest})"
        flat += [name[:20], text]
    return flat


def describe_differences(ours: Sequence[str], theirs: Any) -> str:
    """ "composition: X here, Y there"; empty if the peer's settings are malformed or do not differ."""
    if not isinstance(theirs, list) or len(theirs) > 2 * _MAX_SETTINGS or len(theirs) % 2:
        return ""
    if not all(isinstance(text, str) and len(text) <= _MAX_LETTERS for text in theirs):
        return ""
    here, there = (dict(zip(flat[::2], flat[1::2], strict=True)) for flat in (ours, theirs))
    names = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    return "; ".join(
        f"{_printable(n)}: {_printable(here.get(n))} here, {_printable(there.get(n))} there" for n in names
    )


def _printable(text: str | None) -> str:
    """The text without control characters, which a terminal would obey."""
    return "nothing" if text is None else "".join(letter if letter.isprintable() else "?" for letter in text)
