"""A composition with its one number turned up and down: densities, bits, ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple

from ..core import Aggregator, CompositionError, rebuilt

_INTO = ("inner", "compressor")  # a menu's entries differ for a reason


class Knob(NamedTuple):
    """A setting that trades error for bytes, how far it is turned, in multiples, and by how much: of it, or one."""

    name: str
    least: float
    most: float
    step: float | None = None


KNOBS = (Knob("density", 0.1, 10, 0.1), Knob("bits", 0.5, 2), Knob("rank", 0.5, 2))  # as published for L-GreCo


def with_setting(part: Any, name: str, value: Any) -> Any:
    """The same part with another value of a setting, found in it or in what it wraps; None if there is none.

    A density goes instead of a k.
    """
    instead = {"k": None} if name == "density" else {}

    def change(inside: Any) -> Any:
        names = _names(inside)
        if name not in names:
            return None
        return replace(inside, **{name: value, **{other: none for other, none in instead.items() if other in names}})

    changed = rebuilt(part, change, into=_INTO)
    return None if changed is part else changed


def knob_of(part: Any) -> tuple[Knob, Any] | None:
    """The outermost setting of a part that can be turned, and how it stands."""
    for knob in KNOBS:
        if knob.name in _names(part) and getattr(part, knob.name) is not None:
            return knob, getattr(part, knob.name)
    inside = [getattr(part, name) for name in _INTO if name in _names(part)]
    return next((found for each in inside if (found := knob_of(each)) is not None), None)


def ladder(
    part: Aggregator[Any], least: float | None = None, most: float | None = None
) -> tuple[tuple[Aggregator[Any], ...], int]:
    """The part with every value of its knob from `least` to `most` times what it has, and where its own stands.

    Values that it does not take are left out. A part without a knob is its own ladder.
    """
    found = knob_of(part)
    if found is None:
        return (part,), 0
    knob, own = found
    rungs: list[Aggregator[Any]] = []
    at = 0
    for value in _values(knob, own, least or knob.least, most or knob.most):
        if value == own:
            at = len(rungs)
            rungs.append(part)
            continue
        try:
            rungs.append(with_setting(part, knob.name, value))
        except CompositionError:  # beyond what the part takes
            continue
    return tuple(rungs), at


def _values(knob: Knob, own: float, least: float, most: float) -> Iterator[float]:
    if knob.step is None:
        low, high = max(1, math.floor(own * least)), math.ceil(own * most)
        yield from sorted({*range(low, high + 1), int(own)})
        return
    count = round((most - least) / knob.step)
    values = (float(f"{own * (least + i * knob.step):.6g}") for i in range(count + 1))
    yield from sorted({own, *(value for value in values if abs(value - own) > 1e-5 * own)})


def _names(part: Any) -> set[str]:
    return {field.name for field in fields(part)} if is_dataclass(part) else set()
