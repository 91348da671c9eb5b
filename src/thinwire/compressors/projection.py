"""Random projection (Johnson & Lindenstrauss, 1984): send P·A for r orthonormal directions P that the key gives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from ..core import RANK, Capabilities, Capability, Contract, Dims, Key, all_finite, saturate
from ..kernels import noise_matrix, orthonormalize, reproducible_matmul
from .factored import FactoredCompressor, check_dims, check_rank

_ADDS = FactoredCompressor.capabilities | {Capability.ADDITIVE}
_MAX_CACHED = 1 << 15  # numbers of a basis


@dataclass(frozen=True)
class RandomProjection(FactoredCompressor):
    """Send P·A, r random directions of the longer side m of an m×p matrix: r·p·b bits, P from the key. omega = m/r - 1.

    Decoded to (m/r) Pᵀ P A: unbiased and linear, so payloads can be summed on the wire. As much noise for as many bytes
    as `randomk`, but spread over all coordinates.

    Args:
        rank: r, the number of directions.
        dims: (rows, columns) for layers with that many elements; other layers are folded by their shape.
        scaled: multiply by m/r. False is biased, delta = r/m in expectation.
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

    def factor_shapes(self, dims: Dims) -> list[Dims]:
        return [(min(self.rank, max(dims)), min(dims))]

    def factorize(self, block: Tensor, key: Key) -> list[Tensor]:
        matrix = block if block.dtype == torch.float64 else block.float()
        matrix = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T  # (long, short)
        basis = draw_directions(key, self.rank, len(matrix), matrix.device)
        projected = basis.to(matrix.dtype) @ matrix
        if all_finite(projected):
            return [projected]
        if not all_finite(matrix):
            return [torch.full_like(projected, math.nan)]  # decoders refuse it
        scale = 1 / len(matrix)  # a sum may overflow though the numbers do not
        return [saturate((basis @ (matrix.double() * scale)) / scale)]

    def multiply(self, factors: Sequence[Tensor], dims: Dims, key: Key, dtype: torch.dtype) -> Tensor:
        (projected,) = factors
        basis = draw_directions(key, self.rank, max(dims), projected.device) * self._scale(dims)
        if dims[0] >= dims[1]:
            return reproducible_matmul(basis.T.contiguous(), projected, dtype)
        return reproducible_matmul(projected.T.contiguous(), basis, dtype)

    def factored_contract(self, dims: Dims) -> Contract:
        if self.scaled:
            return Contract(omega=self._scale(dims) - 1)
        return Contract(delta=min(self.rank, max(dims)) / max(dims))

    def _scale(self, dims: Dims) -> float:
        return max(dims) / min(self.rank, max(dims)) if self.scaled else 1.0


def draw_directions(key: Key, rank: int, length: int, device: torch.device) -> Tensor:
    """Draw an orthonormal basis of a random subspace, (r, length) in float64: the same bits on all ranks.

    The noise is independent and symmetric, so that E PᵀP = (r/length)·I. Unbiasedness needs no more than that; the
    noise need not be normal.
    """
    rank = min(rank, length)
    draw = _draw_cached if rank * length <= _MAX_CACHED else _draw
    return draw(key, rank, length, device)


def _draw(key: Key, rank: int, length: int, device: torch.device) -> Tensor:
    return orthonormalize(noise_matrix(rank, length, key, device))


_draw_cached = lru_cache(maxsize=128)(_draw)  # encoder and decoder need the same basis; up to 32 MB of float64
