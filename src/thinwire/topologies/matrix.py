"""The user's own weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..core import CompositionError, World

Rows = tuple[tuple[float, ...], ...]
_NEAR = 1e-6  # how far a sum may be from one


@dataclass(frozen=True)
class Matrix:
    """Your own: rows[i][j] is the weight of rank j's tensor for rank i. Rows and columns must sum to one.

    Given as ((1/2, 1/2), (1/2, 1/2)) in Python and ((0.5, 0.5), (0.5, 0.5)) in a text, or as a file with one row a
    line, numbers apart by commas or blanks.
    """

    rows: tuple[tuple[float, ...], ...] | None = None
    file: str | None = None

    changes = False

    def __post_init__(self) -> None:
        if (self.rows is None) == (self.file is None):
            raise CompositionError("Matrix: give either rows or a file, for example rows=((0.5, 0.5), (0.5, 0.5))")
        check_doubly_stochastic(self.table)

    @property
    def table(self) -> Rows:
        return _read(self.file) if self.file is not None else self.rows or ()

    def weights(self, world: World, step: int) -> dict[int, float]:
        rank, size = world
        if len(self.table) != size:
            raise CompositionError(f"Matrix: it is for {len(self.table)} ranks, this world has {size}")
        return {source: float(weight) for source, weight in enumerate(self.table[rank]) if weight or source == rank}


def check_doubly_stochastic(rows: Rows) -> None:
    """Weights at least 0, rows and columns that sum to one; else the first that does not is named with its sum."""
    if not rows:
        raise CompositionError("Matrix: it has no rows; ((1.0,),) is the smallest")
    for at, row in enumerate(rows):
        if not isinstance(row, tuple) or len(row) != len(rows):
            length = f"{len(row)} numbers" if isinstance(row, tuple) else repr(row)
            raise CompositionError(f"Matrix: row {at} is {length}, needed are {len(rows)}, one for each row")
        for to, weight in enumerate(row):
            if not isinstance(weight, int | float) or not 0 <= weight <= 1 + _NEAR:
                raise CompositionError(f"Matrix: row {at}, column {to} must be in [0, 1], got {weight!r}")
    for name, lines in (("row", rows), ("column", tuple(zip(*rows, strict=True)))):
        for at, line in enumerate(lines):
            if abs(sum(line) - 1) > _NEAR:
                raise CompositionError(
                    f"Matrix: {name} {at} sums to {sum(line):.9g}, it must sum to 1 (within {_NEAR:g}); "
                    "else the average of all ranks would drift"
                )


@cache
def _read(file: str) -> Rows:
    try:
        lines = Path(file).read_text().splitlines()
        return tuple(tuple(map(float, line.replace(",", " ").split())) for line in lines if line.strip())
    except (OSError, ValueError) as error:
        raise CompositionError(f"Matrix: cannot read {file}: {error}; it needs one row of numbers a line") from None
