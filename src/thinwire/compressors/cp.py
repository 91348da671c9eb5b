"""CP decomposition by alternating least squares (Harshman, 1970; Kolda & Bader, 2009): send r vectors per mode."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import (
    RANK,
    Capabilities,
    Capability,
    CompositionError,
    Contract,
    Dims,
    Key,
    derive_key,
    saturate,
    tensor_dims,
)
from ..kernels import noise_matrix, reproducible_matmul
from .factored import FactoredCompressor, check_dims, check_rank, factorize_scaled
from .subspaces import leading_singular_vectors


@dataclass(frozen=True)
class CP(FactoredCompressor):
    """Send r vectors per mode with outer products that sum to nearly x, by alternating least squares: r·sum I_i·b bits.

    The shortest form of a tensor with many modes, and the least reliable: it has no contract, since a best sum may not
    exist and the search may end in a local minimum. Each update solves for one mode with the others fixed, so
    |C(x)| <= |x|. Starts from singular vectors, and from noise where r exceeds the size of a mode.

    Args:
        rank: r, the number of outer products.
        sweeps: number of times that every mode is updated.
        dims: sizes of the modes for layers with that many elements; other layers keep their shape.
    """

    tunable = RANK
    capabilities: ClassVar[Capabilities] = FactoredCompressor.capabilities | {Capability.UNBOUNDED_BIAS}

    rank: int = 4
    sweeps: int = 8
    dims: Dims | None = None

    def __post_init__(self) -> None:
        check_rank("CP", self.rank)
        check_dims("CP", self.dims, (7, 2, 2, 2, 2))
        if self.sweeps < 1:
            raise CompositionError(f"CP: sweeps must be at least 1, got {self.sweeps}; 8 is usual")

    def fold_dims(self, shape: Sequence[int]) -> Dims:
        return tensor_dims(shape, self.dims)

    def factor_shapes(self, dims: Dims) -> list[Dims]:
        return [(self.rank, size) for size in dims]

    def factorize(self, block: Tensor, key: Key) -> list[Tensor]:
        resolution = torch.finfo(block.dtype).eps
        return factorize_scaled(
            block, lambda tensor: alternating_least_squares(tensor, self.rank, self.sweeps, key, resolution)
        )

    def multiply(self, factors: Sequence[Tensor], dims: Dims, key: Key, dtype: torch.dtype) -> Tensor:
        first, *others = factors
        return reproducible_matmul(first.T.contiguous(), outer_products(others), dtype).view(dims)

    def factored_contract(self, dims: Dims) -> Contract:
        return Contract()


def alternating_least_squares(tensor: Tensor, rank: int, sweeps: int, key: Key, resolution: float) -> list[Tensor]:
    """Return the factor (r, size) of each mode. `resolution` is that of the type sent; it bounds cancellation."""
    unfoldings = [tensor.movedim(mode, 0).reshape(size, -1).double() for mode, size in enumerate(tensor.shape)]
    factors = [_initial_factor(unfolding, rank, derive_key(key, mode)) for mode, unfolding in enumerate(unfoldings)]
    for _ in range(sweeps):
        for mode, unfolding in enumerate(unfoldings):
            others = [_normalize_rows(factor) for at, factor in enumerate(factors) if at != mode]
            overlaps = math.prod((factor @ factor.T for factor in others), start=torch.ones((), dtype=torch.float64))
            solve = torch.linalg.pinv(overlaps, rtol=resolution, hermitian=True)
            factors[mode] = solve @ (outer_products(others) @ unfolding.T)
    last = len(factors) - 1
    return _spread_norms([factor if at == last else _normalize_rows(factor) for at, factor in enumerate(factors)])


def _initial_factor(unfolding: Tensor, rank: int, key: Key) -> Tensor:
    rows = leading_singular_vectors(unfolding.float(), rank).double()
    noise = noise_matrix(rank - len(rows), unfolding.shape[0], key, unfolding.device)
    return torch.cat((rows, noise))


def _normalize_rows(factor: Tensor) -> Tensor:
    norms = torch.linalg.vector_norm(factor, dim=1, keepdim=True)
    return factor / torch.where(norms > 0, norms, 1.0)


def _spread_norms(factors: list[Tensor]) -> list[Tensor]:
    """Spread the norm of each term, which its last vector has, evenly over all its vectors."""
    norms = torch.linalg.vector_norm(factors[-1], dim=1, keepdim=True)
    share = norms ** (1 / len(factors))
    last = torch.where(norms > 0, factors[-1] * (share / torch.where(norms > 0, norms, 1.0)), 0.0)
    return [*(factor * share for factor in factors[:-1]), last]


def outer_products(factors: Sequence[Tensor]) -> Tensor:
    """Return outer products of corresponding rows, (r, product of sizes). Elementwise, so the same bits everywhere."""
    product, *others = factors
    for factor in others:
        product = saturate((product[:, :, None] * factor[:, None, :]).flatten(1))
    return product
