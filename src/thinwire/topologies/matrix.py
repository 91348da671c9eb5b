"""Mixing matrix of the user (Xiao & Boyd, 2004): any doubly stochastic K, from a tuple or a file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..core import CompositionError, World

Rows = tuple[tuple[float, ...], ...]
_TOLERANCE = 1e-6  # of a sum that should be one


@dataclass(frozen=True)
class Matrix:
    """A mixing matrix of your own: rows[i] has the weights of all tensors for rank i. Rows and columns sum to one.

    Args:
        rows: the matrix, such as ((0.5, 0.5), (0.5, 0.5)).
        file: a text file with one row per line, numbers separated by commas or blanks; give either this or rows.
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
        """The matrix, from `rows` or from the file."""
        return _read(self.file) if self.file is not None else self.rows or ()

    def weights(self, world: World, step: int) -> dict[int, float]:
        rank, size = world
        if len(self.table) != size:
            raise CompositionError(
                f"Matrix: it has {len(self.table)} rows for a world of {size} ranks; give one row per rank"
            )
        return {source: float(weight) for source, weight in enumerate(self.table[rank]) if weight or source == rank}


def check_doubly_stochastic(rows: Rows) -> None:
    """Raise CompositionError for the first weight outside [0, 1], or row or column that does not sum to one."""
    if not rows:
        raise CompositionError("Matrix: it has no rows; ((1.0,),) is the smallest")
    for at, row in enumerate(rows):
        if not isinstance(row, tuple) or len(row) != len(rows):
            found = f"{len(row)} numbers" if isinstance(row, tuple) else repr(row)
            raise CompositionError(f"Matrix: row {at} is {found}; a row needs {len(rows)} numbers, one per rank")
        for to, weight in enumerate(row):
            if not isinstance(weight, int | float) or not 0 <= weight <= 1 + _TOLERANCE:
                raise CompositionError(f"Matrix: row {at}, column {to} must be in [0, 1], got {weight!r}")
    for name, lines in (("row", rows), ("column", tuple(zip(*rows, strict=True)))):
        for at, line in enumerate(lines):
            if abs(sum(line) - 1) > _TOLERANCE:
                raise CompositionError(
                    f"Matrix: {name} {at} sums to {sum(line):.9g}, it must sum to 1 (within {_TOLERANCE:g}); "
                    "otherwise the average over ranks would drift"
                )


@cache
def _read(file: str) -> Rows:
    try:
        lines = Path(file).read_text().splitlines()
        return tuple(tuple(map(float, line.replace(",", " ").split())) for line in lines if line.strip())
    except (OSError, ValueError) as error:
        raise CompositionError(f"Matrix: cannot read {file}: {error}; it needs one row of numbers per line") from None
