"""Randomized SVD (Halko, Martinsson & Tropp, 2011): send nearly the r leading singular pairs, by random probes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import CompositionError, Key, derive_key
from ..kernels import noise32
from .factored import factorize_scaled
from .subspaces import leading_singular_vectors, orthonormal_rows, split_singular_values
from .svd import LowRankCompressor


@dataclass(frozen=True)
class RandomizedSVD(LowRankCompressor):
    """Send nearly the r leading singular pairs, found by random probes: r·(m + p)·b bits. E delta >= r/min(m, p).

    r + oversampling normal vectors are multiplied by the matrix and refined by power iterations; of their span the best
    r directions are kept. 2 + 2·iterations passes over the matrix. A projection: |x|² = |x - C(x)|² + |C(x)|². In
    expectation it keeps r/min(m, p) of the energy of any matrix, since large singular values are found first.

    Args:
        rank: r, the number of singular pairs.
        dims: (rows, columns) for layers with that many elements; other layers are folded by their shape.
        oversampling: additional probes.
        iterations: power iterations, each two passes over the matrix.
    """

    oversampling: int = 8
    iterations: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.oversampling < 0 or self.iterations < 0:
            raise CompositionError(
                f"RandomizedSVD: oversampling and iterations must be at least 0, got {self.oversampling} and "
                f"{self.iterations}; 8 and 1 are usual"
            )

    def factorize(self, block: Tensor, key: Key) -> list[Tensor]:
        return factorize_scaled(
            block, lambda matrix: randomized_svd(matrix, self.rank, self.oversampling, self.iterations, key)
        )


def randomized_svd(matrix: Tensor, rank: int, oversampling: int, iterations: int, key: Key) -> tuple[Tensor, Tensor]:
    """Return left (r, m) and right (r, p) such that left.T @ right is a projection of the matrix on r directions."""
    is_wide = matrix.shape[0] < matrix.shape[1]
    tall = matrix.T if is_wide else matrix  # probes have the length of the shorter side: fewer random numbers
    num_probes = min(rank + oversampling, tall.shape[1])
    probes = draw_normal(num_probes, tall.shape[1], key, matrix.device).to(matrix.dtype)
    images = probes @ tall.T  # (probes, longer side)
    for _ in range(iterations):
        images = orthonormal_rows(orthonormal_rows(images) @ tall) @ tall.T
    basis = orthonormal_rows(images)
    projected = basis @ tall  # (probes, shorter side)
    best = leading_singular_vectors(projected, rank).to(matrix.dtype)  # (r, probes)
    long, short = split_singular_values(best @ basis, best @ projected)
    return (short, long) if is_wide else (long, short)


def draw_normal(rows: int, columns: int, key: Key, device: torch.device) -> Tensor:
    """Draw standard normal numbers by the Box-Muller transform.

    Their last bits depend on the machine's logarithm, so only the sender may use them.
    """
    count = rows * columns
    radius, angle = ((noise32(derive_key(key, i), count, device) + 0.5) * 2.0**-32 for i in range(2))
    return ((-2 * radius.log()).sqrt() * (2 * math.pi * angle).cos()).view(rows, columns)
