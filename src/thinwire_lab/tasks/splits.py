"""Distribute examples over workers: iid, sorted by label, or by Dirichlet proportions (Hsu et al., 2019)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thinwire.core import CompositionError

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """How examples are distributed. As text: "iid", "label-sorted", "dirichlet(0.3)"."""

    kind: Literal["iid", "sorted", "dirichlet"] = "iid"
    alpha: float | None = (
        None  # of Dirichlet: small values give different, large values similar distributions of labels
    )

    def __post_init__(self) -> None:
        if self.kind not in ("iid", "sorted", "dirichlet"):
            raise CompositionError(f"Split: kind must be iid, sorted or dirichlet, got {self.kind!r}")
        if self.kind != "dirichlet" and self.alpha is not None:
            raise CompositionError(f"Split: {self.kind} has no alpha, got {self.alpha}; only dirichlet has one")
        if self.kind == "dirichlet" and not (self.alpha is not None and 0 < self.alpha < math.inf):
            raise CompositionError(
                f"Split: alpha must be positive and finite, got {self.alpha}; for example dirichlet(0.3)"
            )

    @classmethod
    def parse(cls, text: str) -> Split:
        word = text.strip().lower()
        if word in ("iid", "label-sorted", "sorted"):
            return cls("iid" if word == "iid" else "sorted")
        if match := re.fullmatch(r"dirichlet\(\s*(?:alpha\s*=\s*)?([0-9.e+-]+)\s*\)", word):
            try:
                return cls("dirichlet", float(match[1]))
            except ValueError as error:
                raise CompositionError(f"split {text!r}: {error}") from None
        raise CompositionError(
            f"split must be iid, label-sorted or dirichlet(ALPHA), got {text!r}; for example dirichlet(0.3)"
        )

    def __str__(self) -> str:
        return {"iid": "iid", "sorted": "label-sorted"}.get(
            self.kind, f"dirichlet({self.alpha:g})" if self.alpha else ""
        )


def split_rows(labels: ArrayLike, size: int, split: Split, seed: int) -> list[Rows]:
    """Rows of each rank: a partition of all rows without empty sets; of nearly equal size for iid and sorted.

    Depends only on the arguments, so that all ranks compute the same.
    """
    kinds = np.asarray(labels)
    if size < 1 or size > len(kinds):
        raise CompositionError(
            f"{len(kinds)} examples cannot be split over {size} workers: every worker needs at least one"
        )
    if split.kind == "dirichlet":
        assert split.alpha is not None, "checked by Split"
        return _split_by_dirichlet(kinds, size, split.alpha, np.random.RandomState(seed))
    by_label = split.kind == "sorted"
    order = np.argsort(kinds, kind="stable") if by_label else np.random.RandomState(seed).permutation(len(kinds))
    return [np.asarray(rows, dtype=np.int64) for rows in np.array_split(order, size)]


def split_text(length: int, size: int, split: Split, min_length: int) -> list[tuple[int, int]]:
    """Begin and end of each rank's part of a text: of nearly equal length, at least `min_length`."""
    if split.kind != "iid":
        raise CompositionError(f"a text has no labels and can only be split iid (one part per worker), got {split}")
    if size < 1 or length // size < min_length:
        raise CompositionError(f"{length} tokens cannot be split over {size} workers: each needs at least {min_length}")
    cuts = [length * rank // size for rank in range(size + 1)]
    return list(pairwise(cuts))


def _split_by_dirichlet(
    kinds: NDArray[np.generic], size: int, alpha: float, numbers: np.random.RandomState
) -> list[Rows]:
    """Split the rows of each label in random proportions. An empty rank gets one row of the largest rank."""
    parts: list[list[Rows]] = [[] for _ in range(size)]
    for kind in np.unique(kinds):
        rows = numbers.permutation(np.flatnonzero(kinds == kind)).astype(np.int64)
        proportions = numbers.dirichlet([alpha] * size)
        if not np.isfinite(proportions).all():  # all draws underflowed: one rank gets all rows
            proportions = np.eye(size)[numbers.randint(size)]
        cuts = np.round(np.cumsum(proportions)[:-1] * len(rows)).astype(np.int64)
        for part, piece in zip(parts, np.split(rows, cuts), strict=True):
            part.append(piece)
    result = [np.concatenate(part) for part in parts]
    for rank in range(size):
        if not len(result[rank]):
            largest = max(range(size), key=lambda other: len(result[other]))
            result[rank], result[largest] = result[largest][:1], result[largest][1:]
    return result
