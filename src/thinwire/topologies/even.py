"""The same weight for everybody heard."""

from __future__ import annotations

from collections.abc import Iterable


def evenly(rank: int, others: Iterable[int]) -> dict[int, float]:
    """1/(m + 1) for a rank and each of its m different partners. Doubly stochastic where all ranks have as many
    partners and are heard by as many."""
    heard = sorted({rank, *others})
    return dict.fromkeys(heard, 1 / len(heard))
