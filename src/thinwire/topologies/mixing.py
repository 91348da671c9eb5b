"""Mixing matrix and spectral gap of a topology (Xiao & Boyd, 2004): how fast gossip reaches the average."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import Topology, World, has_period


def mixing_matrix(topology: Topology, size: int, step: int = 0) -> Tensor:
    """The matrix K of one step, float64: row i has the weights with which rank i mixes the tensors it receives.

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
    """1 − ‖K − 1/n‖₂: the least fraction of disagreement that one mixing removes; 1 − |λ₂| if K is symmetric.

    A singular value, because eigenvalues bound the disagreement of symmetric matrices only.
    """
    size = len(matrix)
    remaining = torch.linalg.matrix_norm(matrix - torch.full_like(matrix, 1 / size), ord=2)
    return max(0.0, 1 - float(remaining))


def mixing_rate(topology: Topology, size: int) -> float:
    """The spectral gap per step; if weights change, over one period: 1 − (1 − gap of the product)^(1/period)."""
    steps = topology.period(size) if has_period(topology) else 1
    product = torch.eye(size, dtype=torch.float64)
    for step in range(steps):
        product = mixing_matrix(topology, size, step) @ product
    return float(1 - (1 - spectral_gap(product)) ** (1 / steps))
