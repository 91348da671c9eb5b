"""ST-HOSVD (Vannieuwenhoven et al., 2012) and HOSVD (De Lathauwer et al., 2000): send a Tucker core and its bases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import RANK, Capabilities, Capability, CompositionError, Contract, Dims, Key, tensor_dims
from ..kernels import reproducible_matmul
from .factored import FactoredCompressor, check_dims, check_rank, factorize_scaled
from .subspaces import leading_singular_vectors


@dataclass(frozen=True)
class TuckerCompressor(FactoredCompressor):
    """Base of both: a core, and a basis for each mode that is truncated.

    A mode that keeps its full rank stays in the core, and its basis is not sent.

    Args:
        rank: the largest rank of any mode.
        ranks: the rank of each mode, for layers with as many modes.
        dims: sizes of the modes for layers with that many elements; other layers keep their shape.
    """

    tunable = RANK

    rank: int | None = None
    ranks: Dims | None = None
    dims: Dims | None = None

    sequential: ClassVar[bool]

    def __post_init__(self) -> None:
        name, example = type(self).__name__, (7, 2, 2, 2, 2)
        check_rank(name, self.rank)
        check_dims(name, self.dims, example)
        if self.rank is None and self.ranks is None:
            raise CompositionError(f"{name}: give rank or ranks; rank=4 keeps at most four directions of each mode")
        if self.ranks is not None and not all(type(r) is int and r > 0 for r in self.ranks):
            raise CompositionError(f"{name}: ranks must be positive integers such as (1, 1, 2, 1, 1), got {self.ranks}")
        if self.ranks is not None and self.dims is not None and len(self.ranks) != len(self.dims):
            raise CompositionError(
                f"{name}: ranks and dims must have the same length, got {self.ranks} and {self.dims}"
            )

    def fold_dims(self, shape: Sequence[int]) -> Dims:
        return tensor_dims(shape, self.dims)

    def truncated_modes(self, dims: Dims) -> list[tuple[int, int, int]]:
        """Return (mode, rank, largest rank it could have) of the modes that are truncated, in order."""
        if self.ranks is not None and len(self.ranks) == len(dims):
            ranks = self.ranks
        else:
            ranks = dims if self.rank is None else (self.rank,) * len(dims)
        sizes, truncated = list(dims), []
        for mode, rank in enumerate(ranks):
            full = min(dims[mode], math.prod(sizes[:mode] + sizes[mode + 1 :]))
            if rank < full:
                truncated.append((mode, rank, full))
                if self.sequential:
                    sizes[mode] = rank
        return truncated

    def factor_shapes(self, dims: Dims) -> list[Dims]:
        kept = {mode: rank for mode, rank, _ in self.truncated_modes(dims)}
        core = tuple(kept.get(mode, size) for mode, size in enumerate(dims))
        return [core, *((rank, dims[mode]) for mode, rank in kept.items())]

    def factorize(self, block: Tensor, key: Key) -> list[Tensor]:
        del key  # deterministic
        ranks = [(mode, rank) for mode, rank, _ in self.truncated_modes(tuple(block.shape))]
        return factorize_scaled(block, lambda tensor: tucker_decompose(tensor, ranks, self.sequential))

    def multiply(self, factors: Sequence[Tensor], dims: Dims, key: Key, dtype: torch.dtype) -> Tensor:
        core, *bases = factors
        modes = [mode for mode, _, _ in self.truncated_modes(dims)]
        for mode, basis in reversed(list(zip(modes, bases, strict=True))):  # the first mode comes last
            front = core.movedim(mode, 0)
            product = reproducible_matmul(
                basis.T.contiguous(), front.reshape(len(front), -1), dtype if mode == modes[0] else core.dtype
            )
            core = product.view(-1, *front.shape[1:]).movedim(0, mode)
        return core


@dataclass(frozen=True)
class STHOSVD(TuckerCompressor):
    """Send a Tucker core and one basis per mode, each of what the last left: (prod r_i + sum I_i·r_i)·b bits. Biased.

    The sequentially truncated HOSVD (Vannieuwenhoven, Vandebril & Meerbergen, 2012). Each mode keeps at least
    r_i / min(I_i, rest) of the energy that the modes before it left, where rest is the product of the other modes'
    present sizes; delta is the product of these. A projection: |x|² = |x - C(x)|² + |C(x)|².

    Args:
        rank: the largest rank of any mode.
        ranks: the rank of each mode, for layers with as many modes.
        dims: sizes of the modes for layers with that many elements; other layers keep their shape.
    """

    sequential: ClassVar[bool] = True

    def factored_contract(self, dims: Dims) -> Contract:
        return Contract(delta=math.prod(rank / full for _, rank, full in self.truncated_modes(dims)))


@dataclass(frozen=True)
class HOSVD(TuckerCompressor):
    """Send a Tucker core and each mode's best basis for the whole tensor: (prod r_i + sum I_i·r_i)·b bits. No delta.

    The higher-order SVD (De Lathauwer, De Moor & Vandewalle, 2000). The bases are chosen independently, so together
    they may keep next to nothing; `st_hosvd` is cheaper and has a bound. A projection, so |C(x)| <= |x|. error² is at
    most the sum of what each mode alone would lose, which is a bound only where little is truncated.

    Args:
        rank: the largest rank of any mode.
        ranks: the rank of each mode, for layers with as many modes.
        dims: sizes of the modes for layers with that many elements; other layers keep their shape.
    """

    capabilities: ClassVar[Capabilities] = TuckerCompressor.capabilities | {Capability.UNBOUNDED_BIAS}

    sequential: ClassVar[bool] = False

    def factored_contract(self, dims: Dims) -> Contract:
        delta = 1 - sum(1 - rank / full for _, rank, full in self.truncated_modes(dims))
        return Contract(delta=delta if delta > 0 else None)


def tucker_decompose(tensor: Tensor, ranks: Sequence[tuple[int, int]], sequential: bool) -> list[Tensor]:
    """Return the core, then a basis (rank, size) for each (mode, rank).

    sequential: each basis is found in the core that the modes before it left, else in the whole tensor.
    """
    core, bases = tensor, []
    for mode, rank in ranks:
        basis = leading_singular_vectors(_unfold(core if sequential else tensor, mode), rank).to(tensor.dtype)
        core = torch.tensordot(basis, core, ([1], [mode])).movedim(0, mode)
        bases.append(basis)
    return [core, *bases]


def _unfold(tensor: Tensor, mode: int) -> Tensor:
    return tensor.movedim(mode, 0).reshape(tensor.shape[mode], -1)
