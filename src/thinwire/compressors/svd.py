"""Truncated SVD (Eckart & Young, 1936; for gradients Rebrikov et al., 2024): send the r leading singular pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import RANK, Contract, Dims, Key
from ..kernels import reproducible_matmul
from .factored import FactoredCompressor, check_dims, check_rank, factorize_scaled
from .subspaces import leading_singular_vectors, split_singular_values


@dataclass(frozen=True)
class LowRankCompressor(FactoredCompressor):
    """Base of compressors that send two factors of rank r of a matrix."""

    tunable = RANK

    rank: int = 4
    dims: Dims | None = None

    def __post_init__(self) -> None:
        check_rank(type(self).__name__, self.rank)
        check_dims(type(self).__name__, self.dims)

    def factor_shapes(self, dims: Dims) -> list[Dims]:
        rank = min(self.rank, *dims)
        return [(rank, dims[0]), (rank, dims[1])]

    def multiply(self, factors: Sequence[Tensor], dims: Dims, key: Key, dtype: torch.dtype) -> Tensor:
        left, right = factors
        return reproducible_matmul(left.T.contiguous(), right, dtype)

    def factored_contract(self, dims: Dims) -> Contract:
        return Contract(delta=min(self.rank, *dims) / min(dims))


@dataclass(frozen=True)
class TruncatedSVD(LowRankCompressor):
    """Send the r leading singular pairs of the layer as an m×p matrix: r·(m + p)·b bits. Biased, delta = r/min(m, p).

    No other matrix of rank r is nearer to x. Computes a Gram matrix and its eigenvectors; on large layers `rsvd` gives
    nearly the same for a fraction of the time.

    Args:
        rank: r, the number of singular pairs.
        dims: (rows, columns) for layers with that many elements; other layers are folded by their shape.
    """

    def factorize(self, block: Tensor, key: Key) -> list[Tensor]:
        del key  # deterministic
        return factorize_scaled(block, lambda matrix: truncated_svd(matrix, self.rank))


def truncated_svd(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return left (r, m) and right (r, p) such that left.T @ right is the nearest matrix of rank r."""
    rows, columns = matrix.shape
    short = matrix if rows <= columns else matrix.T
    basis = leading_singular_vectors(short, rank)
    own, other = split_singular_values(basis, basis.to(matrix.dtype) @ short)
    return (own, other) if rows <= columns else (other, own)
