"""Compositions as trees: looking at every part inside one, and putting another in its place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from torch import Tensor

from .parts import takes_importance

P = TypeVar("P")

_ELSEWHERE = ("values",)  # these encode what was kept, a vector of its own: what is true of the layer is not of them


def parts_of(part: Any) -> Iterator[Any]:
    """The part and, from the outside in, every part it is made of; second stages (`values`) are left out."""
    yield part
    for inside in _inside(part).values():
        for each in inside if isinstance(inside, tuple) else (inside,):
            yield from parts_of(each)


def rebuilt(part: P, change: Callable[[Any], Any], into: Collection[str] | None = None) -> P:
    """The same composition with every part replaced for which `change` gives another instead of None.

    The walk goes from the outside in and ends at what was replaced. `into` names the settings it may enter; else it
    enters all but `values`. Where nothing changes, the very same object comes back.
    """
    changed = change(part)
    if changed is not None:
        return changed  # type: ignore[no-any-return]
    news: dict[str, Any] = {}
    for name, inside in _inside(part).items():
        if into is not None and name not in into:
            continue
        if isinstance(inside, tuple):
            entries = tuple(rebuilt(entry, change, into) for entry in inside)
            if any(new is not old for new, old in zip(entries, inside, strict=True)):
                news[name] = entries
        elif (new := rebuilt(inside, change, into)) is not inside:
            news[name] = new
    return replace(part, **news) if news else part  # type: ignore[type-var]


def with_importance(part: P, importance: Tensor) -> P:
    """The composition with this importance given to every part that takes one."""
    return rebuilt(part, lambda inside: inside.with_importance(importance) if takes_importance(inside) else None)


def _inside(part: Any) -> dict[str, Any]:
    """Settings that are parts themselves, or tuples of parts."""
    if not is_dataclass(part) or isinstance(part, type):
        return {}
    named = {f.name: getattr(part, f.name) for f in fields(part) if f.init and f.name not in _ELSEWHERE}
    return {name: value for name, value in named.items() if _is_part(value)}


def _is_part(value: Any) -> bool:
    if isinstance(value, tuple):
        return bool(value) and all(map(_is_part, value))
    return is_dataclass(value) and not isinstance(value, type)
