"""Settings that both ends must have alike: short texts of them, and which of them differ."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

_MOST_SETTINGS, _MOST_LETTERS = 8, 90  # so that all of them fit into a frame of the handshake, whatever the letters


def described(settings: Mapping[str, object]) -> list[str]:
    """Names and values in turns; a long value is cut and has a digest of the whole."""
    flat: list[str] = []
    for name, value in list(settings.items())[:_MOST_SETTINGS]:
        text = str(value).encode("unicode_escape").decode()
        if len(text) > _MOST_LETTERS:
            digest = hashlib.sha256(text.encode()).hexdigest()[:8]
            text = f"{text[: _MOST_LETTERS - 14]}... ({digest})"
        flat += [name[:20], text]
    return flat


def differences(ours: Sequence[str], theirs: Any) -> str:
    """ "exchange: X here, Y there"; empty if the peer's are not such a list, or do not differ."""
    if not isinstance(theirs, list) or len(theirs) > 2 * _MOST_SETTINGS or len(theirs) % 2:
        return ""
    if not all(isinstance(text, str) and len(text) <= _MOST_LETTERS for text in theirs):
        return ""
    here, there = (dict(zip(flat[::2], flat[1::2], strict=True)) for flat in (ours, theirs))
    names = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    return "; ".join(f"{_shown(n)}: {_shown(here.get(n))} here, {_shown(there.get(n))} there" for n in names)


def _shown(text: str | None) -> str:
    """As it is, but without letters that a terminal would obey."""
    return "nothing" if text is None else "".join(letter if letter.isprintable() else "?" for letter in text)
