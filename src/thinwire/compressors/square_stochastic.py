"""Coordinates drawn by their energy."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core import Compressor, Contract, Key, TensorSpec
from ..kernels import largest, noise32
from .identity import Identity
from .sparse import Sparse, check_count, kept_count, kept_nbytes


@dataclass(frozen=True)
class SquareStochastic(Sparse):
    """Send k coordinates drawn without replacement with chances in proportion to x^2: as Top-k. Biased, |C(x)| <= |x|.

    An exponential race: each coordinate gets a waiting time with rate x^2, the k that arrive first are sent. Zeros
    arrive last, in order of position.
    """

    density: float | None = None
    k: int | None = None
    values: Compressor = Identity()

    def __post_init__(self) -> None:
        check_count("SquareStochastic", self.density, self.k)

    def choose(self, scores: Tensor, key: Key) -> Tensor:
        return largest(_arrivals(scores, key), kept_count(self.density, self.k, scores.numel()))

    def bounds(self, numel: int) -> tuple[int, int]:
        count = kept_count(self.density, self.k, numel)
        return count, count

    def share(self, pieces: int) -> SquareStochastic:
        return self if self.k is None else replace(self, k=-(-self.k // pieces))

    def contract(self, spec: TensorSpec) -> Contract:
        return Contract()

    def nbytes(self, spec: TensorSpec) -> float:
        return kept_nbytes(kept_count(self.density, self.k, spec.numel), spec, self.values)


def _arrivals(flat: Tensor, key: Key) -> Tensor:
    """log of 1 / waiting time: 2 log|x| - log(-log u). In logs, so that no square can overflow or vanish."""
    uniform = (noise32(key, flat.numel(), flat.device).double() + 0.5) * 2.0**-32
    return 2 * flat.double().abs().log() - torch.log(-torch.log(uniform))
