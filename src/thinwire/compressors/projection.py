"""A random shadow of a matrix, on directions that both sides draw from the key."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from ..core import RANK, Capabilities, Capability, Contract, Dims, Key, all_finite, saturate
from ..kernels import agreed_product, noise_matrix, orthonormal
from .factored import Factored, check_dims, check_rank

_ADDS = Factored.capabilities | {Capability.ADDITIVE}


@dataclass(frozen=True)
class RandomProjection(Factored):
    """Send P·A, r random directions of the longer side m of an m×p matrix: r·p·b bits, P from the key. omega = m/r - 1.

    Decoded to (m/r) Pᵀ P A: unbiased and linear, so payloads add up on the wire. As much noise for as many bytes as
    `randomk`, but spread over all coordinates. `scaled=False` leaves m/r out: biased, delta = r/m in expectation.
    """

    tunable = RANK

    rank: int = 4
    dims: Dims | None = None
    scaled: bool = True

    def __post_init__(self) -> None:
        check_rank("RandomProjection", self.rank)
        check_dims("RandomProjection", self.dims)

    @cached_property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        return _ADDS | {Capability.SCALES_KEPT} if self.scaled else _ADDS

    def forms(self, dims: Dims) -> list[Dims]:
        return [(min(self.rank, max(dims)), min(dims))]

    def factors(self, block: Tensor, key: Key) -> list[Tensor]:
        matrix = block if block.dtype == torch.float64 else block.float()
        matrix = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T  # (long, short)
        basis = directions(key, self.rank, len(matrix), matrix.device)
        shadow = basis.to(matrix.dtype) @ matrix
        if all_finite(shadow):
            return [shadow]
        if not all_finite(matrix):
            return [torch.full_like(shadow, math.nan)]  # decoders refuse it
        scale = 1 / len(matrix)  # a sum may be too large though the numbers are not
        return [saturate((basis @ (matrix.double() * scale)) / scale)]

    def product(self, factors: Sequence[Tensor], dims: Dims, key: Key, dtype: torch.dtype) -> Tensor:
        (shadow,) = factors
        basis = directions(key, self.rank, max(dims), shadow.device) * self._scale(dims)
        if dims[0] >= dims[1]:
            return agreed_product(basis.T.contiguous(), shadow, dtype)
        return agreed_product(shadow.T.contiguous(), basis, dtype)

    def law(self, dims: Dims) -> Contract:
        if self.scaled:
            return Contract(omega=self._scale(dims) - 1)
        return Contract(delta=min(self.rank, max(dims)) / max(dims))

    def _scale(self, dims: Dims) -> float:
        return max(dims) / min(self.rank, max(dims)) if self.scaled else 1.0


def directions(key: Key, rank: int, length: int, device: torch.device) -> Tensor:
    """(r, length), float64: an orthonormal basis of a random subspace, the same bits on all ranks.

    Noise of independent, symmetric numbers has no preferred coordinate and no preferred sign, so the mean of PᵀP is a
    multiple of one, r/length. That is all that unbiasedness needs; nothing has to be normal.
    """
    rank = min(rank, length)
    draw = _remembered if rank * length <= 1 << 15 else _draw
    return draw(key, rank, length, device)


def _draw(key: Key, rank: int, length: int, device: torch.device) -> Tensor:
    return orthonormal(noise_matrix(rank, length, key, device))


_remembered = lru_cache(maxsize=128)(_draw)  # encoder and decoder ask alike; up to 32 MB of float64
