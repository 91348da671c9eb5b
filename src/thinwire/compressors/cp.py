"""A sum of few outer products."""

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
from ..kernels import agreed_product, noise_matrix
from .factored import Factored, at_ease, check_dims, check_rank
from .subspaces import principal


@dataclass(frozen=True)
class CP(Factored):
    """Send r vectors a mode, whose outer products add up to nearly x, by least squares in turns: r·sum I_i·b bits.

    The shortest form of a tensor with many modes, and the least reliable: no contract, as the best such sum may not
    exist and the search may stop anywhere. Every turn solves for one mode with the others fixed, so no result is longer
    than x. Starts from singular vectors, and from the key's noise where r is more than a mode has.

    Written here, since a tensor library would bring a global switch of backends for the forty lines below.
    """

    tunable = RANK
    capabilities: ClassVar[Capabilities] = Factored.capabilities | {Capability.UNBOUNDED_BIAS}

    rank: int = 4
    sweeps: int = 8
    dims: Dims | None = None

    def __post_init__(self) -> None:
        check_rank("CP", self.rank)
        check_dims("CP", self.dims, (7, 2, 2, 2, 2))
        if self.sweeps < 1:
            raise CompositionError(f"CP: sweeps must be at least 1, got {self.sweeps}; 8 is usual")

    def fold(self, shape: Sequence[int]) -> Dims:
        return tensor_dims(shape, self.dims)

    def forms(self, dims: Dims) -> list[Dims]:
        return [(self.rank, size) for size in dims]

    def factors(self, block: Tensor, key: Key) -> list[Tensor]:
        resolution = torch.finfo(block.dtype).eps
        return at_ease(block, lambda tensor: alternating(tensor, self.rank, self.sweeps, key, resolution))

    def product(self, factors: Sequence[Tensor], dims: Dims, key: Key, dtype: torch.dtype) -> Tensor:
        first, *others = factors
        return agreed_product(first.T.contiguous(), outer(others), dtype).view(dims)

    def law(self, dims: Dims) -> Contract:
        return Contract()


def alternating(tensor: Tensor, rank: int, sweeps: int, key: Key, resolution: float) -> list[Tensor]:
    """(r, size) of each mode. `resolution` of the numbers that will be sent bounds how far terms may cancel."""
    unfoldings = [tensor.movedim(mode, 0).reshape(size, -1).double() for mode, size in enumerate(tensor.shape)]
    factors = [_start(unfolding, rank, derive_key(key, mode)) for mode, unfolding in enumerate(unfoldings)]
    for _ in range(sweeps):
        for mode, unfolding in enumerate(unfoldings):
            others = [_units(factor) for at, factor in enumerate(factors) if at != mode]
            overlaps = math.prod((factor @ factor.T for factor in others), start=torch.ones((), dtype=torch.float64))
            solve = torch.linalg.pinv(overlaps, rtol=resolution, hermitian=True)
            factors[mode] = solve @ (outer(others) @ unfolding.T)
    last = len(factors) - 1
    return _shared([factor if at == last else _units(factor) for at, factor in enumerate(factors)])


def _start(unfolding: Tensor, rank: int, key: Key) -> Tensor:
    rows = principal(unfolding.float(), rank).double()
    more = noise_matrix(rank - len(rows), unfolding.shape[0], key, unfolding.device)
    return torch.cat((rows, more))


def _units(factor: Tensor) -> Tensor:
    lengths = torch.linalg.vector_norm(factor, dim=1, keepdim=True)
    return factor / torch.where(lengths > 0, lengths, 1.0)


def _shared(factors: list[Tensor]) -> list[Tensor]:
    """The last mode's vectors carry all the length; each term's is spread evenly over its vectors."""
    lengths = torch.linalg.vector_norm(factors[-1], dim=1, keepdim=True)
    share = lengths ** (1 / len(factors))
    rest = torch.where(lengths > 0, factors[-1] * (share / torch.where(lengths > 0, lengths, 1.0)), 0.0)
    return [*(factor * share for factor in factors[:-1]), rest]


def outer(factors: Sequence[Tensor]) -> Tensor:
    """(r, product of sizes): each row an outer product of rows. Elementwise, so the same bits everywhere."""
    product, *others = factors
    for factor in others:
        product = saturate((product[:, :, None] * factor[:, None, :]).flatten(1))
    return product
