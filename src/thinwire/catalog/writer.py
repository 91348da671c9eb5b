"""Texts of parts: `to_text` writes the shortest text that `parse` reads back to an equal object."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import MISSING, Field
from typing import Any

from .. import aggregators, compressors
from ..core import Aggregator, CompositionError, Compressor, Topology, signature_of
from .kinds import settings_of
from .registry import PARTS, REGISTRY
from .tables import default_aggregator, is_controller

Unlisted = Callable[[Any], str]


def to_text(part: Any) -> str:
    """Write a part as text.

    Args:
        part: an aggregator, a compressor, a topology or a controller.

    Returns:
        The shortest text that `parse` reads back to an equal object: settings that have their default value and the
        default aggregator of a compressor are left out.

    Raises:
        CompositionError: the part, or one inside, is not in the catalog; `thinwire.register` adds it.
    """
    return _text(part, _refuse)


def part_text(part: Any) -> str:
    """`to_text`; parts outside the catalog are written as class path and settings. For logs and comparisons."""
    return _text(part, lambda inside: signature_of(inside, _text_if_registered))


def _refuse(part: Any) -> str:
    name = type(part).__name__
    raise CompositionError(
        f"{name} is not in the catalog, so it has no text; thinwire.register(...) adds it. The catalog has "
        f"{', '.join(PARTS)}"
    )


def _text_if_registered(part: Any) -> str | None:
    return part_text(part) if REGISTRY.name_of(type(part)) is not None else None


def _text(part: Any, unlisted: Unlisted) -> str:
    cls = type(part)
    name = REGISTRY.name_of(cls)
    if name is None:
        return unlisted(part)
    if cls in (aggregators.GatherMean, aggregators.SumMean) and default_aggregator(part.compressor) == part:
        return _text(part.compressor, unlisted)
    arguments = [_argument(field, getattr(part, field.name), unlisted) for field in settings_of(cls)]
    return f"{name}({', '.join(a for a in arguments if a)})"


def _argument(field: Field[Any], value: Any, unlisted: Unlisted) -> str:
    if _default(field) == value:
        return ""
    if isinstance(value, tuple) and not _is_plain(value):  # parts; a tuple of numbers is a plain setting
        return ", ".join(_text(each, unlisted) for each in value)
    if isinstance(value, Aggregator | Topology) or (isinstance(value, Compressor) and field.default is MISSING):
        return _text(value, unlisted)
    if type(value) is compressors.Cast:
        return f'{field.name}="{value.dtype}"'
    if isinstance(value, Compressor) or is_controller(value) or not _is_plain(value):
        return f"{field.name}={_text(value, unlisted)}"
    return f"{field.name}={literal(value)}"


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(_is_plain(each) for pair in value.items() for each in pair)
    return value is None or isinstance(value, bool | int | float | str)


def changed_settings(part: Any, write: Callable[[Any], str], without: Collection[str] = ()) -> list[str]:
    """Return `name=value` for each setting that is not its default. write: the text of a value that is a part."""
    found = []
    for field in settings_of(type(part)):
        value = getattr(part, field.name)
        if field.name not in without and value != _default(field):
            found.append(f"{field.name}={literal(value) if _is_plain(value) else write(value)}")
    return found


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def literal(value: Any) -> str:
    """Return a plain value as it stands in a composition text."""
    return f'"{value}"' if isinstance(value, str) else repr(value).lower() if isinstance(value, bool) else repr(value)
