"""How fast a topology mixes: plain functions of its matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import Topology, World, has_period


def mixing_matrix(topology: Topology, size: int, step: int = 0) -> Tensor:
    """K, float64: row i has the weights of what rank i takes in at this step.

    >>> from thinwire.topologies import Ring
    >>> mixing_matrix(Ring(), 4)[0].tolist()
    [0.3333333333333333, 0.3333333333333333, 0.0, 0.3333333333333333]
    """
    matrix = torch.zeros(size, size, dtype=torch.float64)
    for rank in range(size):
        for source, weight in topology.weights(World(rank, size), step).items():
            matrix[rank, source] = weight
    return matrix


def spectral_gap(matrix: Tensor) -> float:
    """1 − the part of ranks' disagreement that may be left after one mixing; 1 − |λ₂| for a symmetric matrix.

    The part is the largest singular value of K − 1/n: for matrices that are not symmetric, eigenvalues say less.
    """
    size = len(matrix)
    left = torch.linalg.matrix_norm(matrix - torch.full_like(matrix, 1 / size), ord=2)
    return max(0.0, 1 - float(left))


def mixing_rate(topology: Topology, size: int) -> float:
    """The gap per step. Where partners change it is taken over a whole cycle of them: 1 − (what is left)^(1/steps)."""
    steps = topology.period(size) if has_period(topology) else 1
    product = torch.eye(size, dtype=torch.float64)
    for step in range(steps):
        product = mixing_matrix(topology, size, step) @ product
    return float(1 - (1 - spectral_gap(product)) ** (1 / steps))
