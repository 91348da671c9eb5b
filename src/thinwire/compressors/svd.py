"""The best matrix of few directions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import RANK, Contract, Dims, Key
from ..kernels import agreed_product
from .factored import Factored, at_ease, check_dims, check_rank
from .subspaces import halved, principal


@dataclass(frozen=True)
class LowRank(Factored):
    """Base of those that send r directions on each side of a matrix."""

    tunable = RANK

    rank: int = 4
    dims: Dims | None = None

    def __post_init__(self) -> None:
        check_rank(type(self).__name__, self.rank)
        check_dims(type(self).__name__, self.dims)

    def forms(self, dims: Dims) -> list[Dims]:
        rank = min(self.rank, *dims)
        return [(rank, dims[0]), (rank, dims[1])]

    def product(self, factors: Sequence[Tensor], dims: Dims, key: Key, dtype: torch.dtype) -> Tensor:
        left, right = factors
        return agreed_product(left.T.contiguous(), right, dtype)

    def law(self, dims: Dims) -> Contract:
        return Contract(delta=min(self.rank, *dims) / min(dims))


@dataclass(frozen=True)
class TruncatedSVD(LowRank):
    """Send the r leading singular pairs of the layer as an m×p matrix: r·(m + p)·b bits. Biased, delta = r/min(m, p).

    Nothing of that length is nearer to x. Costs a product of the matrix with itself and the eigenvectors of that; on
    large layers `rsvd` finds nearly the same for a fraction.
    """

    def factors(self, block: Tensor, key: Key) -> list[Tensor]:
        del key  # deterministic
        return at_ease(block, lambda matrix: truncated_svd(matrix, self.rank))


def truncated_svd(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """(r, m) and (r, p): left.T @ right is the matrix of rank r that is nearest."""
    rows, columns = matrix.shape
    short = matrix if rows <= columns else matrix.T
    basis = principal(short, rank)
    own, other = halved(basis, basis.to(matrix.dtype) @ short)
    return (own, other) if rows <= columns else (other, own)
