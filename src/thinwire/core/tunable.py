"""How a part can be turned: the setting that trades error for bytes, and how far `adapt` turns it."""

from __future__ import annotations

from typing import Any, NamedTuple


class Tunable(NamedTuple):
    """A part says it as a class attribute: `tunable: ClassVar[Tunable] = Tunable("density", 0.1, 10, 0.1)`."""

    name: str  # of the setting; where it is None, the part is not turned
    least: float  # in multiples of what is written
    most: float
    step: float | None = None  # as a multiple, too; None: whole numbers, in steps of one
    replaces: tuple[str, ...] = ()  # settings that are None where this one is set


# as published for L-GreCo (Alimohammadi et al., 2023)
DENSITY = Tunable("density", 0.1, 10, 0.1, replaces=("k",))
BITS = Tunable("bits", 0.5, 2)
RANK = Tunable("rank", 0.5, 2)


def tunable_of(part: Any) -> Tunable | None:
    """What the class of a part declares; None: it is not turned."""
    declared = getattr(type(part), "tunable", None)
    return declared if isinstance(declared, Tunable) else None
