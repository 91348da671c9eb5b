"""Stochastic rounding to evenly spaced levels, block by block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from ..core import BITS, Capabilities, Capability, CompositionError, Contract, Key, Payload, TensorSpec, cast_saturating
from ..kernels import block_peaks, qsgd_decode, qsgd_encode, qsgd_feedback, qsgd_mean, tree_sum
from ..kernels.codes import SMALLEST_NORM
from .block_quantizer import BlockQuantizer
from .blocks import QUANTIZES, as_blocks, check_block
from .rest import encode_and_subtract


@dataclass(frozen=True)
class QSGD(BlockQuantizer):
    """Send sign and a random one of two neighbouring levels of |x| / max|block|: b·d + 32·d/block bits. Unbiased.

    s = 2^(bits-1) - 1 levels above zero. omega = (sqrt(1 + (block-1)/s^2) - 1) / 2, reached by one large and block-1
    small numbers. The norm is the largest magnitude: order-free, so every implementation gives the same bits; or, with
    norm="l2", a block's length as published (added in a fixed order): omega = min(block/s^2, sqrt(block)/s).
    """

    tunable = BITS
    magnitudes: ClassVar[str] = "norms"

    bits: int = 4
    block: int = 512
    norm: str = "max"

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 16:
            raise CompositionError(f"QSGD: bits must be 2 to 16 (sign included), got {self.bits}; 4 is usual")
        check_block("QSGD", self.block)
        if self.norm not in ("max", "l2"):
            raise CompositionError(f"QSGD: norm must be 'max' or 'l2', got {self.norm!r}")

    @cached_property
    def capabilities(self) -> Capabilities:
        few = self.levels < (3 if self.norm == "max" else math.sqrt(self.block))  # then most coordinates become zero
        return QUANTIZES if few else QUANTIZES | {Capability.SENDS_EVERY_COORDINATE}

    def encode(self, tensor: Tensor, key: Key) -> Payload:
        flat = cast_saturating(tensor.flatten(), torch.float32)
        lengths = self._lengths(flat) if self.norm == "l2" and flat.numel() else None
        return self._payload(*qsgd_encode(flat, self.bits, self.block, key, lengths), flat.numel())

    def encode_with_residual(self, tensor: Tensor, residual: Tensor, key: Key) -> tuple[Payload, Tensor]:
        if tensor.dtype != torch.float32 or self.norm != "max":
            return encode_and_subtract(self, tensor, residual, key)
        packed, norms, rest = qsgd_feedback(tensor.flatten(), residual.flatten(), self.bits, self.block, key)
        return self._payload(packed, norms, tensor.numel()), rest.view(tensor.shape)

    def _lengths(self, flat: Tensor) -> Tensor:
        """Of blocks scaled to 1, so no square overflows."""
        peaks = block_peaks(flat, self.block).clamp(min=SMALLEST_NORM)
        lengths = tree_sum((as_blocks(flat, self.block).abs() / peaks[:, None]).square()).sqrt()
        return (peaks * lengths.clamp(min=1)).clamp(max=torch.finfo(torch.float32).max)

    def decode_flat(self, packed: Tensor, magnitudes: Tensor, count: int) -> Tensor:
        return qsgd_decode(packed, magnitudes, count, self.bits, self.block)

    def mean_flat(
        self, out: Tensor | None, packed: Sequence[Tensor], magnitudes: Sequence[Tensor], count: int
    ) -> Tensor:
        return qsgd_mean(out, packed, magnitudes, count, self.bits, self.block)

    def contract(self, spec: TensorSpec) -> Contract:
        length = max(1, min(self.block, spec.numel))
        if self.norm == "l2":
            return Contract(omega=min(length / self.levels**2, math.sqrt(length) / self.levels))
        return Contract(omega=(math.sqrt(1 + (length - 1) / self.levels**2) - 1) / 2)
