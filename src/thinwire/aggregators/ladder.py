"""A composition with its one number turned up and down: densities, bits, ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from ..core import Aggregator, CompositionError, Tunable, rebuilt, tunable_of

_INTO = ("inner", "compressor")  # a menu's entries differ for a reason


def with_setting(part: Any, name: str, value: Any) -> Any:
    """The same part with another value of its tunable setting, found in it or in what it wraps; None if there is none.

    Settings that it replaces are given up: a density goes instead of a k.
    """

    def change(inside: Any) -> Any:
        tunable = tunable_of(inside)
        if tunable is None or tunable.name != name:
            return None
        names = {field.name for field in fields(inside)}
        return replace(inside, **{name: value, **{other: None for other in tunable.replaces if other in names}})

    changed = rebuilt(part, change, into=_INTO)
    return None if changed is part else changed


def knob_of(part: Any) -> tuple[Tunable, Any] | None:
    """The outermost setting of a part that can be turned, and how it stands."""
    if not is_dataclass(part):
        return None
    tunable = tunable_of(part)
    if tunable is not None and getattr(part, tunable.name) is not None:
        return tunable, getattr(part, tunable.name)
    inside = [getattr(part, field.name) for field in fields(part) if field.name in _INTO]
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


def _values(knob: Tunable, own: float, least: float, most: float) -> Iterator[float]:
    if knob.step is None:
        low, high = max(1, math.floor(own * least)), math.ceil(own * most)
        yield from sorted({*range(low, high + 1), int(own)})
        return
    count = round((most - least) / knob.step)
    values = (float(f"{own * (least + i * knob.step):.6g}") for i in range(count + 1))
    yield from sorted({own, *(value for value in values if abs(value - own) > 1e-5 * own)})
