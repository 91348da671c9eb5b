"""Compositions as trees of parts: iterating over them, and replacing parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from torch import Tensor

from .parts import takes_importance

P = TypeVar("P")

_SECOND_STAGES = ("values",)  # settings with parts that encode the kept values, a vector of another length


def parts_of(part: Any) -> Iterator[Any]:
    """The part and all parts inside it, from the outside in, without second stages (`values`)."""
    yield part
    for inside in _inside(part).values():
        for each in inside if isinstance(inside, tuple) else (inside,):
            yield from parts_of(each)


def rebuild(part: P, change: Callable[[Any], Any], into: Collection[str] | None = None) -> P:
    """The composition with parts replaced, from the outside in. If nothing changes, the same object is returned.

    Args:
        part: the composition.
        change: returns the replacement of a part, which is not searched further, or None to keep it.
        into: names of the settings to search; by default all but `values`.
    """
    changed = change(part)
    if changed is not None:
        return changed  # type: ignore[no-any-return]
    changes: dict[str, Any] = {}
    for name, inside in _inside(part).items():
        if into is not None and name not in into:
            continue
        if isinstance(inside, tuple):
            parts = tuple(rebuild(each, change, into) for each in inside)
            if any(new is not old for new, old in zip(parts, inside, strict=True)):
                changes[name] = parts
        elif (new := rebuild(inside, change, into)) is not inside:
            changes[name] = new
    return replace(part, **changes) if changes else part  # type: ignore[type-var]


def with_importance(part: P, importance: Tensor) -> P:
    """The composition with this importance set on every part that takes one."""
    return rebuild(part, lambda inside: inside.with_importance(importance) if takes_importance(inside) else None)


def _inside(part: Any) -> dict[str, Any]:
    """The settings that are parts or tuples of parts."""
    if not is_dataclass(part) or isinstance(part, type):
        return {}
    named = {f.name: getattr(part, f.name) for f in fields(part) if f.init and f.name not in _SECOND_STAGES}
    return {name: value for name, value in named.items() if _is_part(value)}


def _is_part(value: Any) -> bool:
    if isinstance(value, tuple):
        return bool(value) and all(map(_is_part, value))
    return is_dataclass(value) and not isinstance(value, type)
