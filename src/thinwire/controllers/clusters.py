"""k-means clustering (Lloyd, 1982) with k-means++ seeds (Arthur & Vassilvitskii, 2007). Plain mathematics."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import Key
from ..kernels import noise32

_MAX_ITERATIONS = 100


def standardize(points: Tensor) -> Tensor:
    """Each column with mean 0 and, unless all its values are equal, deviation 1."""
    spread = points.std(dim=0, correction=0)
    return (points - points.mean(dim=0)) / torch.where(spread > 0, spread, 1.0)


def k_means(points: Tensor, clusters: int, key: Key) -> tuple[Tensor, Tensor]:
    """Return the cluster of each point, and the centers.

    Args:
        points: (points, columns).
        clusters: how many; there are fewer if fewer points differ.
        key: random bits of the seeds; the same key gives the same clusters.
    """
    centers = _draw_seeds(points, clusters, key)
    members = torch.cdist(points, centers).argmin(dim=1)
    for _ in range(_MAX_ITERATIONS):
        centers = torch.stack(
            [points[members == at].mean(dim=0) if bool((members == at).any()) else c for at, c in enumerate(centers)]
        )
        new_members = torch.cdist(points, centers).argmin(dim=1)
        if torch.equal(new_members, members):
            break
        members = new_members
    return members, centers


def _draw_seeds(points: Tensor, clusters: int, key: Key) -> Tensor:
    """k-means++: the first seed is uniform; each next one is drawn by squared distance from the nearest seed."""
    draws = noise32(key, clusters, torch.device("cpu")).double() / 2**32
    chosen = [int(draws[0] * len(points))]
    while len(chosen) < clusters:
        squares = torch.cdist(points, points[chosen]).amin(dim=1).square().cumsum(dim=0)
        if not float(squares[-1]) > 0:
            break  # every point is a seed
        drawn = torch.searchsorted(squares, draws[len(chosen)] * squares[-1], right=True)
        chosen.append(min(int(drawn), len(points) - 1))
    return points[chosen]
