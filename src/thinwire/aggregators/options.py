"""Variants of a composition: the same parts with other values of one setting (density, bits or rank)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple

from ..core import Aggregator, CompositionError, Tunable, rebuild, tunable_of

_INTO = ("inner", "compressor")  # not into menus: their options differ on purpose


class Variants(NamedTuple):
    """A composition with each value of its tunable setting; `default` is the index of its own value."""

    options: tuple[Aggregator[Any], ...]
    default: int


def with_setting(part: Any, name: str, value: Any) -> Any:
    """Return the part with another value of its tunable setting, or of the part inside that has it; None if none has.

    Settings that the tunable one replaces become None: a density is given instead of a k.
    """

    def change(inside: Any) -> Any:
        tunable = tunable_of(inside)
        if tunable is None or tunable.name != name:
            return None
        names = {field.name for field in fields(inside)}
        return replace(inside, **{name: value, **{other: None for other in tunable.replaces if other in names}})

    changed = rebuild(part, change, into=_INTO)
    return None if changed is part else changed


def find_tunable(part: Any) -> tuple[Tunable, Any] | None:
    """Return the outermost tunable setting of a part or of the parts inside, and its value; None if there is none."""
    if not is_dataclass(part):
        return None
    tunable = tunable_of(part)
    if tunable is not None and getattr(part, tunable.name) is not None:
        return tunable, getattr(part, tunable.name)
    inside = [getattr(part, field.name) for field in fields(part) if field.name in _INTO]
    return next((found for each in inside if (found := find_tunable(each)) is not None), None)


def options_of(part: Aggregator[Any], min_factor: float | None = None, max_factor: float | None = None) -> Variants:
    """Return the part with each value of its tunable setting in a range around its own value.

    Values that the part refuses are left out. A part without a tunable setting is the only option.

    Args:
        part: a composition.
        min_factor: the smallest value, as a multiple of the part's own; the declared one if None.
        max_factor: the largest value, likewise.
    """
    found = find_tunable(part)
    if found is None:
        return Variants((part,), 0)
    tunable, own = found
    options: list[Aggregator[Any]] = []
    default = 0
    for value in _values(tunable, own, min_factor or tunable.min_factor, max_factor or tunable.max_factor):
        if value == own:
            default = len(options)
            options.append(part)
            continue
        try:
            options.append(with_setting(part, tunable.name, value))
        except CompositionError:  # beyond what the part takes
            continue
    return Variants(tuple(options), default)


def _values(tunable: Tunable, own: float, min_factor: float, max_factor: float) -> Iterator[float]:
    if tunable.step is None:
        low, high = max(1, math.floor(own * min_factor)), math.ceil(own * max_factor)
        yield from sorted({*range(low, high + 1), int(own)})
        return
    count = round((max_factor - min_factor) / tunable.step)
    values = (float(f"{own * (min_factor + i * tunable.step):.6g}") for i in range(count + 1))
    yield from sorted({own, *(value for value in values if abs(value - own) > 1e-5 * own)})
