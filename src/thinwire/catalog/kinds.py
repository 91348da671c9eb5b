"""The kind of a class, found from its methods, and a check that a text can express its settings."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from ..core import Aggregator, CompositionError, Compressor, Controller, Topology

PLURALS = {
    "compressor": "compressors",
    "aggregator": "aggregators",
    "memory": "memories",
    "topology": "topologies",
    "controller": "controllers",
}
METHODS = {  # in the order in which they are tried: a memory is also an aggregator
    "compressor": ("encode", "decode", "contract", "num_bytes"),
    "controller": ("init", "observe", "replan"),
    "memory": ("init", "reduce", "target", "hand_over", "adopt"),
    "aggregator": ("init", "reduce"),
    "topology": ("weights", "changes"),
}
PLAIN_TYPES = (int, float, str, bool, type(None), tuple, dict)
PART_TYPES = (Compressor, Aggregator, Topology, Controller)  # parts that a setting may be


def find_kind(cls: type[Any]) -> str:
    """Return the kind of a class by its methods; else raise an error with the methods that the nearest kind needs."""
    for kind in METHODS:
        if not missing_methods(cls, kind):
            return kind
    near = min(METHODS, key=lambda kind: len(missing_methods(cls, kind)) / len(METHODS[kind]))
    kinds = "; ".join(
        f"{with_article(kind)} has {', '.join(names)}" for kind, names in METHODS.items() if kind != "memory"
    )
    hint = "" if len(missing_methods(cls, near)) == len(METHODS[near]) else f"; {_lacks(cls, near)}"
    raise CompositionError(f"register: {cls.__name__} implements the protocol of no part: {kinds}{hint}")


def check_kind(cls: type[Any], kind: str) -> str:
    """Return the kind if the class has its methods. A memory needs an aggregator's methods only."""
    if kind not in PLURALS:
        raise CompositionError(f"register: kind must be one of {', '.join(PLURALS)}, got {kind!r}")
    if missing_methods(cls, "aggregator" if kind == "memory" else kind):
        raise CompositionError(f"register: {cls.__name__} is not {with_article(kind)}: {_lacks(cls, kind)}")
    return kind


def missing_methods(cls: type[Any], kind: str) -> list[str]:
    """Return the methods of a kind that the class does not have."""
    named = {field.name for field in fields(cls)} if is_dataclass(cls) else set()
    return [name for name in METHODS[kind] if not hasattr(cls, name) and name not in named]


def _lacks(cls: type[Any], kind: str) -> str:
    return f"for {with_article(kind)}, {cls.__name__} lacks {', '.join(missing_methods(cls, kind))}"


def with_article(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def check_settings(cls: type[Any]) -> None:
    """Raise CompositionError for the first setting that a text cannot express."""
    name = cls.__name__
    if not is_dataclass(cls):
        raise CompositionError(
            f"register: {name} is not a dataclass, so a text cannot express its settings; decorate it with "
            "@dataclass(frozen=True), or use its objects without a name"
        )
    try:
        hints = get_type_hints(cls)
    except NameError as error:
        raise CompositionError(
            f"register: the types of {name}'s settings cannot be resolved: {error}; import them in its module"
        ) from error
    remedy = "hide it with field(default=..., repr=False), or use the class without a name"
    for field in settings_of(cls):
        kinds = set(member_types(hints[field.name]))
        odd = [kind for kind in kinds if kind not in PLAIN_TYPES + PART_TYPES]
        if odd or not field.init:
            what = getattr(odd[0], "__name__", str(odd[0])) if odd else "not an argument"
            raise CompositionError(
                f"register: {name}.{field.name} is {what}, which a text cannot express; a setting is int, float, bool, "
                f"str, None, a tuple of these, Compressor, Aggregator, Topology or Controller; {remedy}"
            )
    first = next(iter(required_settings(cls)), None)
    if first is not None and get_origin(hints[first.name]) is tuple and not _holds_parts(hints[first.name]):
        raise CompositionError(
            f"register: {name}.{first.name} is a tuple without a default; only a tuple of parts may be one: "
            "tuple[Aggregator, ...]"
        )


def settings_of(cls: type[Any]) -> list[Field[Any]]:
    """Return the fields that a text may set; hidden ones (`repr=False`) hold what is set at run time."""
    return [field for field in fields(cls) if field.repr]


def required_settings(cls: type[Any]) -> list[Field[Any]]:
    """Return the settings without a default."""
    return [field for field in settings_of(cls) if field.default is MISSING and field.default_factory is MISSING]


def member_types(wanted: Any) -> Iterator[Any]:
    """Yield the types of a union, or the one type if it is none; generic types without their arguments."""
    if get_origin(wanted) in (Union, types.UnionType):
        for inner in get_args(wanted):
            yield from member_types(inner)
    else:
        yield get_origin(wanted) or wanted


def _holds_parts(hint: Any) -> bool:
    return any(kind in PART_TYPES for inner in get_args(hint) for kind in member_types(inner))
