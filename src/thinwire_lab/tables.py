"""Make dataclasses from the tables of a config file; errors name the key, the value and what would be valid."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar

from thinwire import renamed
from thinwire.core import ThinwireError, did_you_mean, union_members

T = TypeVar("T")


class ConfigError(ThinwireError, ValueError):
    """A config is wrong. The text names the key, the value and what would be valid. Raised before anything starts."""


class ConfigTable:
    """A mapping; keys are taken one by one, and `rest` has those that were not taken."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        if not isinstance(values, Mapping):
            raise ConfigError(f"a config must be a table of keys and values, got a {type(values).__name__}")
        self._values = dict(values)

    def take(self, key: str, default: Any = None) -> Any:
        return self._values.pop(key, default)

    def take_table(self, key: str) -> Mapping[str, Any]:
        value = self.take(key)
        if not isinstance(value, Mapping):
            raise ConfigError(f"{key}: must be a table, got {value!r}")
        return value

    def take_some(self, keys: Iterable[str]) -> dict[str, Any]:
        return {key: self._values.pop(key) for key in keys if key in self._values}

    def rest(self) -> dict[str, Any]:
        return self._values


def build(cls: type[T], values: Any, where: str, **given: Any) -> T:
    """Make a dataclass from a table.

    Args:
        cls: the dataclass; its fields are the keys.
        values: the table.
        where: prefix of errors, such as "optimizer".
        given: fields that are set by the caller and may not be in the table.

    Raises:
        ConfigError: a key is unknown, renamed or missing, or a value has the wrong type.
    """
    inside = f"{where}: " if where else ""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{inside}must be a table, got {values!r}")
    hints = typing.get_type_hints(cls)
    free = {f.name: f for f in fields(cls) if f.name not in given}  # type: ignore[arg-type]
    for key in values:
        if key not in free:
            old = renamed.hint(renamed.KEYS, f"{where}.{key}" if where else key)
            meant = old or f"{did_you_mean(key, free)}; there are {', '.join(free)}"
            raise ConfigError(f"{inside}{key}: no such key{meant}")
    for name, f in free.items():
        if name not in values and f.default is MISSING and f.default_factory is MISSING:
            raise ConfigError(f"{inside}{name}: missing")
    converted = {key: _convert(value, hints[key], f"{inside}{key}") for key, value in values.items()}
    try:
        return cls(**converted, **given)
    except ConfigError as error:
        raise ConfigError(f"{inside}{str(error).removeprefix(inside)}") from error


def check_one_of(key: str, value: Any, allowed: Sequence[str]) -> None:
    """Raise ConfigError unless the value is allowed."""
    if value not in allowed:
        meant = did_you_mean(str(value), allowed)
        raise ConfigError(f"{key}: must be one of {', '.join(allowed)}, got {value!r}{meant}")


def check_positive(key: str, value: float) -> None:
    """Raise ConfigError unless the value is above 0."""
    if not value > 0:
        raise ConfigError(f"{key}: must be above 0, got {value}")


def check_not_negative(key: str, value: float) -> None:
    """Raise ConfigError if the value is below 0."""
    if not value >= 0:
        raise ConfigError(f"{key}: must not be negative, got {value}")


def _convert(value: Any, hint: Any, key: str) -> Any:
    """The value with lists as tuples; ConfigError if it has another type."""
    for kind in union_members(hint):
        if typing.get_origin(kind) is tuple and isinstance(value, list | tuple):
            inner = typing.get_args(kind)[0]
            return tuple(_convert(item, inner, f"{key}[{at}]") for at, item in enumerate(value))
    if not has_type(value, hint):
        raise ConfigError(f"{key}: must be {type_in_words(hint)}, got {value!r}")
    return value


def has_type(value: Any, hint: Any) -> bool:
    """Whether a value has a type such as int, float | None or Literal["a", "b"]. A bool is not a number."""
    if len(union_members(hint)) > 1:
        return any(has_type(value, kind) for kind in union_members(hint))
    if typing.get_origin(hint) is typing.Literal:
        return value in typing.get_args(hint)
    origin = typing.get_origin(hint) or hint
    if origin in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, (int, float) if origin is float else origin)


def type_in_words(hint: Any) -> str:
    """The type in words, for errors."""
    if len(union_members(hint)) > 1:
        kinds = [kind for kind in union_members(hint) if kind is not type(None) and not _is_part(kind)]
        return " or ".join(map(type_in_words, kinds))
    origin = typing.get_origin(hint) or hint
    if origin is typing.Literal:
        return " or ".join(str(value) for value in typing.get_args(hint))
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", tuple: "a list"}
    return words.get(origin, "a table")


def _is_part(kind: Any) -> bool:
    """Whether the type is an object, which a config file cannot contain."""
    origin = typing.get_origin(kind) or kind
    return is_dataclass(origin) or bool(getattr(origin, "_is_protocol", False))
