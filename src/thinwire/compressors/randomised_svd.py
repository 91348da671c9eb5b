"""Nearly the best matrix of few directions, from a few passes over it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import CompositionError, Key, derive_key
from ..kernels import noise32
from .factored import at_ease
from .subspaces import halved, principal, row_basis
from .svd import LowRank


@dataclass(frozen=True)
class RandomisedSVD(LowRank):
    """Send nearly the r leading singular pairs, found by random probes: r·(m + p)·b bits. E delta >= r/min(m, p).

    r + oversampling normal directions are sent through the matrix and `iterations` times there and back; the best r of
    what they span are kept. 2 + 2·iterations passes over the matrix. A projection: |x|² = |x - C(x)|² + |C(x)|². It
    keeps r/min(m, p) of the energy in expectation, whatever the matrix: directions with larger singular values are
    caught with larger chances. Halko, Martinsson and Tropp, arXiv 0909.4061.
    """

    oversampling: int = 8
    iterations: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.oversampling < 0 or self.iterations < 0:
            raise CompositionError(
                f"RandomisedSVD: oversampling and iterations must be at least 0, got {self.oversampling} and "
                f"{self.iterations}; 8 and 1 are usual"
            )

    def factors(self, block: Tensor, key: Key) -> list[Tensor]:
        return at_ease(block, lambda matrix: randomised_svd(matrix, self.rank, self.oversampling, self.iterations, key))


def randomised_svd(matrix: Tensor, rank: int, oversampling: int, iterations: int, key: Key) -> tuple[Tensor, Tensor]:
    """(r, m) and (r, p): left.T @ right is a projection of the matrix onto r directions."""
    wide = matrix.shape[0] < matrix.shape[1]
    tall = matrix.T if wide else matrix  # so that few random numbers are needed
    probes = min(rank + oversampling, tall.shape[1])
    seen = normal(probes, tall.shape[1], key, matrix.device).to(matrix.dtype) @ tall.T  # (probes, longer side)
    for _ in range(iterations):
        seen = row_basis(row_basis(seen) @ tall) @ tall.T
    basis = row_basis(seen)
    images = basis @ tall  # (probes, shorter side)
    best = principal(images, rank).to(matrix.dtype)  # (r, probes)
    long, short = halved(best @ basis, best @ images)
    return (short, long) if wide else (long, short)


def normal(rows: int, columns: int, key: Key, device: torch.device) -> Tensor:
    """Normal numbers, by Box and Muller's formula: a distribution that looks the same from every direction.

    Their last bits depend on the machine's logarithm, so they serve a sender only.
    """
    count = rows * columns
    radius, turn = ((noise32(derive_key(key, i), count, device) + 0.5) * 2.0**-32 for i in range(2))
    return ((-2 * radius.log()).sqrt() * (2 * math.pi * turn).cos()).view(rows, columns)
