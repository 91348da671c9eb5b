"""Tunable settings: which setting of a part trades error for bytes, and in which range `adapt` varies it."""

from __future__ import annotations

from typing import Any, NamedTuple


class Tunable(NamedTuple):
    """A part declares it as a class attribute: `tunable: ClassVar[Tunable] = Tunable("density", 0.1, 10, 0.1)`."""

    name: str  # of the setting; where the setting is None, it is not varied
    min_factor: float  # of the setting's own value
    max_factor: float
    step: float | None = None  # of the factor; None: the setting takes all integers of the range
    replaces: tuple[str, ...] = ()  # settings that are None where this one is set


# ranges as published for L-GreCo (Alimohammadi et al., 2024)
DENSITY = Tunable("density", 0.1, 10, 0.1, replaces=("k",))
BITS = Tunable("bits", 0.5, 2)
RANK = Tunable("rank", 0.5, 2)


def tunable_of(part: Any) -> Tunable | None:
    """Return what the class of a part declares; None if it declares nothing."""
    declared = getattr(type(part), "tunable", None)
    return declared if isinstance(declared, Tunable) else None
