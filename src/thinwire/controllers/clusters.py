"""Groups of points that lie together. Plain mathematics."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import Key
from ..kernels import noise32

_ROUNDS = 100


def standardised(points: Tensor) -> Tensor:
    """Each column with mean 0 and, unless all are equal, deviation 1."""
    spread = points.std(dim=0, correction=0)
    return (points - points.mean(dim=0)) / torch.where(spread > 0, spread, 1.0)


def k_means(points: Tensor, clusters: int, key: Key) -> tuple[Tensor, Tensor]:
    """Which cluster each point (points, columns) is in, and the centres: no more than there are different points.

    The same for the same key; seeded as in k-means++, then moved until nothing changes.
    """
    centres = _seeds(points, clusters, key)
    members = torch.cdist(points, centres).argmin(dim=1)
    for _ in range(_ROUNDS):
        centres = torch.stack(
            [points[members == at].mean(dim=0) if bool((members == at).any()) else c for at, c in enumerate(centres)]
        )
        again = torch.cdist(points, centres).argmin(dim=1)
        if torch.equal(again, members):
            break
        members = again
    return members, centres


def _seeds(points: Tensor, clusters: int, key: Key) -> Tensor:
    """One point by chance, then others, the likelier the farther they are from those (by squares)."""
    draws = noise32(key, clusters, torch.device("cpu")).double() / 2**32
    chosen = [int(draws[0] * len(points))]
    while len(chosen) < clusters:
        squares = torch.cdist(points, points[chosen]).amin(dim=1).square().cumsum(dim=0)
        if not float(squares[-1]) > 0:
            break  # every point has one of its own
        found = torch.searchsorted(squares, draws[len(chosen)] * squares[-1], right=True)
        chosen.append(min(int(found), len(points) - 1))
    return points[chosen]
