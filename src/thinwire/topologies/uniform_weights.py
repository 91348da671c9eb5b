"""Equal weights for a rank and its neighbors."""

from __future__ import annotations

from collections.abc import Iterable


def uniform_weights(rank: int, others: Iterable[int]) -> dict[int, float]:
    """1/(m + 1) for a rank and each of its m distinct neighbors.

    Doubly stochastic if all ranks receive from m neighbors and send to m neighbors.
    """
    sources = sorted({rank, *others})
    return dict.fromkeys(sources, 1 / len(sources))
