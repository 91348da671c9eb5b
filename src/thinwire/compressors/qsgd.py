"""QSGD (Alistarh et al., 2017): send the norm of each block, and a stochastically rounded level of every value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from ..core import BITS, Capabilities, Capability, CompositionError, Contract, Key, Payload, TensorSpec, cast_saturating
from ..kernels import (
    CodeForm,
    Coding,
    block_peaks,
    qsgd_decode,
    qsgd_encode,
    qsgd_feedback,
    qsgd_mean,
    tree_sum,
)
from ..kernels.codes import SMALLEST_NORM
from .block_quantizer import BlockQuantizer
from .blocks import QUANTIZER, as_blocks, check_block
from .residual import encode_and_subtract


@dataclass(frozen=True)
class QSGD(BlockQuantizer):
    """Send the sign and a stochastically rounded level of |x| / max|block|: b·d + 32·d/block bits. Unbiased.

    There are s = 2^(bits-1) - 1 levels above zero. omega = (sqrt(1 + (block-1)/s^2) - 1) / 2, reached by a block of one
    large and block-1 small values. norm="l2" is the published form: omega = min(block/s^2, sqrt(block)/s). Its squares
    are added in a fixed order, so that all implementations give the same bits; a maximum does not depend on the order.

    Args:
        bits: bits per coordinate, sign included, 2 to 16.
        block: number of values that share a norm.
        norm: "max", the largest magnitude of the block, or "l2", its Euclidean norm.
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
        makes_zeros = self.levels < (3 if self.norm == "max" else math.sqrt(self.block))  # of most coordinates
        batches = {Capability.BATCHES_LAYERS} if self.norm == "max" else set[Capability]()
        return QUANTIZER | batches | (set() if makes_zeros else {Capability.SENDS_EVERY_COORDINATE})

    @cached_property
    def code_form(self) -> CodeForm:
        return CodeForm(Coding.LEVELS, self.bits, self.block)

    def encode(self, tensor: Tensor, key: Key) -> Payload:
        flat = cast_saturating(tensor.flatten(), torch.float32)
        norms = self._l2_norms(flat) if self.norm == "l2" and flat.numel() else None
        return self._payload(*qsgd_encode(flat, self.bits, self.block, key, norms), flat.numel())

    def encode_with_residual(self, tensor: Tensor, residual: Tensor, key: Key) -> tuple[Payload, Tensor]:
        if tensor.dtype != torch.float32 or self.norm != "max":
            return encode_and_subtract(self, tensor, residual, key)
        packed, norms, new_residual = qsgd_feedback(tensor.flatten(), residual.flatten(), self.bits, self.block, key)
        return self._payload(packed, norms, tensor.numel()), new_residual.view(tensor.shape)

    def _l2_norms(self, flat: Tensor) -> Tensor:
        """Return the norm of each block, computed of blocks scaled to 1, so that no square overflows."""
        peaks = block_peaks(flat, self.block).clamp(min=SMALLEST_NORM)
        scaled = tree_sum((as_blocks(flat, self.block).abs() / peaks[:, None]).square()).sqrt()
        return (peaks * scaled.clamp(min=1)).clamp(max=torch.finfo(torch.float32).max)

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
