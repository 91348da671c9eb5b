"""A small core and one basis a mode."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import RANK, Capabilities, Capability, CompositionError, Contract, Dims, Key, tensor_dims
from ..kernels import agreed_product
from .factored import Factored, at_ease, check_dims, check_rank
from .subspaces import principal


@dataclass(frozen=True)
class Tucker(Factored):
    """Base of the two: a core and the bases of those modes that are shortened.

    `rank` is the most any mode keeps; `ranks` say it mode by mode, for layers that have as many modes. A mode at full
    rank stays in the core and its basis is not sent.
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
            raise CompositionError(f"{name}: ranks must be whole numbers such as (1, 1, 2, 1, 1), got {self.ranks}")
        if self.ranks is not None and self.dims is not None and len(self.ranks) != len(self.dims):
            raise CompositionError(f"{name}: as many ranks as dims are needed, got {self.ranks} for {self.dims}")

    def fold(self, shape: Sequence[int]) -> Dims:
        return tensor_dims(shape, self.dims)

    def cuts(self, dims: Dims) -> list[tuple[int, int, int]]:
        """(mode, rank, most that rank could be) of the modes that are shortened, in their order."""
        if self.ranks is not None and len(self.ranks) == len(dims):
            ranks = self.ranks
        else:
            ranks = dims if self.rank is None else (self.rank,) * len(dims)
        sizes, found = list(dims), []
        for mode, rank in enumerate(ranks):
            full = min(dims[mode], math.prod(sizes[:mode] + sizes[mode + 1 :]))
            if rank < full:
                found.append((mode, rank, full))
                if self.sequential:
                    sizes[mode] = rank
        return found

    def forms(self, dims: Dims) -> list[Dims]:
        cuts = self.cuts(dims)
        kept = {mode: rank for mode, rank, _ in cuts}
        core = tuple(kept.get(mode, size) for mode, size in enumerate(dims))
        return [core, *((rank, dims[mode]) for mode, rank in kept.items())]

    def factors(self, block: Tensor, key: Key) -> list[Tensor]:
        del key  # deterministic
        cuts = [(mode, rank) for mode, rank, _ in self.cuts(tuple(block.shape))]
        return at_ease(block, lambda tensor: tucker(tensor, cuts, self.sequential))

    def product(self, factors: Sequence[Tensor], dims: Dims, key: Key, dtype: torch.dtype) -> Tensor:
        core, *bases = factors
        modes = [mode for mode, _, _ in self.cuts(dims)]
        for mode, basis in reversed(list(zip(modes, bases, strict=True))):  # the last product is that of the first mode
            front = core.movedim(mode, 0)
            product = agreed_product(
                basis.T.contiguous(), front.reshape(len(front), -1), dtype if mode == modes[0] else core.dtype
            )
            core = product.view(-1, *front.shape[1:]).movedim(0, mode)
        return core


@dataclass(frozen=True)
class STHOSVD(Tucker):
    """Send a Tucker core and, mode by mode, the best basis for what is left: (prod r_i + sum I_i·r_i)·b bits. Biased.

    Each mode keeps at least r_i / min(I_i, rest) of the energy that the modes before it left, where rest is the product
    of the other modes' sizes at that time; delta is the product of these. A
    projection: |x|² = |x - C(x)|² + |C(x)|². Vannieuwenhoven, Vandebril and Meerbergen 2012.
    """

    sequential: ClassVar[bool] = True

    def law(self, dims: Dims) -> Contract:
        return Contract(delta=math.prod(rank / full for _, rank, full in self.cuts(dims)))


@dataclass(frozen=True)
class HOSVD(Tucker):
    """Send a Tucker core and each mode's best basis for the whole tensor: (prod r_i + sum I_i·r_i)·b bits. No delta.

    Modes do not know of one another, so together they may keep next to nothing; `st_hosvd` costs less and does not. A
    projection, so |C(x)| <= |x|. error² is at most the sum of what each mode alone would lose: a promise only where
    little is cut.
    """

    capabilities: ClassVar[Capabilities] = Tucker.capabilities | {Capability.UNBOUNDED_BIAS}

    sequential: ClassVar[bool] = False

    def law(self, dims: Dims) -> Contract:
        delta = 1 - sum(1 - rank / full for _, rank, full in self.cuts(dims))
        return Contract(delta=delta if delta > 0 else None)


def tucker(tensor: Tensor, cuts: Sequence[tuple[int, int]], sequential: bool) -> list[Tensor]:
    """The core, then for each (mode, rank) its basis, (rank, size): one after the other, or each from the tensor."""
    core, bases = tensor, []
    for mode, rank in cuts:
        basis = principal(_unfolding(core if sequential else tensor, mode), rank).to(tensor.dtype)
        core = torch.tensordot(basis, core, ([1], [mode])).movedim(0, mode)
        bases.append(basis)
    return [core, *bases]


def _unfolding(tensor: Tensor, mode: int) -> Tensor:
    return tensor.movedim(mode, 0).reshape(tensor.shape[mode], -1)
