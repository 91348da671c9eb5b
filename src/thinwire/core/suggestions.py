"""Suggestions for misspelled names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known name most similar to this one, ignoring case; None if none is close."""
    names = {name.lower(): name for name in known}
    matches = get_close_matches(word.lower(), list(names), 1)
    return names[matches[0]] if matches else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: " (did you mean 'topk'?)", or nothing."""
    name = closest(word, known)
    return "" if name is None else f" (did you mean {name!r}?)"
