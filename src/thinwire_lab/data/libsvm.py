"""Parse LIBSVM text: one row per line, a label and then `index:value` pairs with increasing indices from 1."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def parse_libsvm(text: str, features: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Dense features (rows, features) and labels (rows,); missing indices are zero.

    Raises:
        ValueError: a line is not `label index:value index:value ...`; the text has the number of the line.
    """
    if features < 1:
        raise ValueError(f"parse_libsvm: features must be at least 1, got {features}; give the number of columns")
    lines = text.removesuffix("\n").split("\n") if text.strip() else []
    if not lines:
        raise ValueError("parse_libsvm: the text has no rows; expected lines such as '1 3:0.5 7:1'")

    labels: list[float] = []
    counts: list[int] = []  # pairs per line
    columns: list[int] = []
    values: list[float] = []
    for number, line in enumerate(lines, start=1):
        before = len(columns)
        try:
            label, *pairs = line.split()
            labels.append(float(label))
            for pair in pairs:
                column, value = pair.split(":")
                columns.append(int(column))
                values.append(float(value))
        except ValueError:
            raise _explain_line(line, number) from None
        counts.append(len(columns) - before)

    row = np.repeat(np.arange(len(lines)), counts)
    _check_range(columns, row, features)
    column_of = np.array(columns, dtype=np.int64)
    value_of = np.array(values, dtype=np.float64)
    label_of = np.array(labels, dtype=np.float64)
    _check_finite(label_of, np.arange(len(lines)), "label")
    _check_finite(value_of, row, "value")
    _check_rising(column_of, row)

    dense = np.zeros((len(lines), features))
    dense[row, column_of - 1] = value_of
    return dense, label_of


def _explain_line(line: str, number: int) -> ValueError:
    """The error for a line that cannot be parsed, with its first wrong word."""
    words = line.split()
    if not words:
        return ValueError(f"line {number} is empty; every line is a row and starts with its label")
    if not _is_number(words[0]):
        return ValueError(f"line {number}: label {words[0]!r} is not a number; a row starts with one, as in '1 3:0.5'")
    bad = next(word for word in words[1:] if not _is_pair(word))
    return ValueError(f"line {number}: {bad!r} is not index:value; '3:0.5' sets column 3 to 0.5")


def _is_number(word: str) -> bool:
    """Whether float() takes the word."""
    try:
        float(word)
    except ValueError:
        return False
    return True


def _is_pair(word: str) -> bool:
    """Whether the word is integer:number, by the same rules as the reading loop."""
    index, _, value = word.partition(":")
    try:
        int(index)
    except ValueError:
        return False
    return _is_number(value)  # a second colon is left in value and is no number


def _check_finite(numbers: NDArray[np.float64], row: NDArray[np.int64], what: str) -> None:
    """Raise for the first number that is infinite or not a number."""
    for at in np.flatnonzero(~np.isfinite(numbers))[:1]:
        raise ValueError(f"line {row[at] + 1}: {what} {numbers[at]} is not finite; use a finite number")


def _check_range(columns: list[int], row: NDArray[np.int64], features: int) -> None:
    """Raise for the first index outside 1 to features."""
    for at, column in enumerate(columns):  # still Python's integers, because an index may be too large for int64
        if not 1 <= column <= features:
            raise ValueError(f"line {row[at] + 1}: index {column} is outside 1 to {features}; indices count from 1")


def _check_rising(column: NDArray[np.int64], row: NDArray[np.int64]) -> None:
    """Raise for the first index that is not above the one before it in its line."""
    for at in np.flatnonzero((row[1:] == row[:-1]) & (column[1:] <= column[:-1]))[:1]:
        raise ValueError(
            f"line {row[at + 1] + 1}: index {column[at + 1]} follows {column[at]}; indices must increase within a line"
        )
