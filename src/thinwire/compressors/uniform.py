"""Evenly spaced levels around zero, block by block."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import CompositionError, Contract, DecodeError, Key, Part, Payload, TensorSpec, narrow
from ..wire import expect_magnitudes, expect_parts, pack_bits, packed_bytes, unpack_bits
from .blocks import as_blocks, block_count, check_block
from .rounding import check_rounding, rounded

_SMALLEST = 2.0**-112  # a block's scale is at least this, so that levels / scale stays finite


@dataclass(frozen=True)
class Uniform:
    """Send round(x / s) with s = max|block| / (2^(bits-1) - 1): b·d + 32·d/block bits. Nearest: |error| <= s/2.

    rounding="nearest" is deterministic and biased; "stochastic" is unbiased, with omega = (block-1) / (4 levels^2) at
    worst. One level less than the bits allow, so that levels are symmetric around zero.
    """

    bits: int = 8
    block: int = 512
    rounding: str = "nearest"

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 8:
            raise CompositionError(f"Uniform: bits must be 2 to 8, got {self.bits}; 8 is usual")
        check_block("Uniform", self.block)
        check_rounding("Uniform", self.rounding)

    @property
    def levels(self) -> int:
        return (1 << (self.bits - 1)) - 1

    def encode(self, tensor: Tensor, key: Key) -> Payload:
        flat = narrow(tensor.flatten(), torch.float32)
        blocks = as_blocks(flat, self.block)
        peaks = blocks.abs().amax(dim=1).clamp(min=_SMALLEST) if blocks.numel() else flat
        steps = rounded(blocks * (self.levels / peaks)[:, None], self.rounding, key).clamp(-self.levels, self.levels)
        codes = (steps + self.levels).to(torch.int32).flatten()[: flat.numel()]
        return Payload.of(
            [
                Part("levels", pack_bits(codes, self.bits), float(self.bits * flat.numel())),
                Part("scales", peaks, 32.0 * peaks.numel()),
            ]
        )

    def decode(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        del key
        packed, peaks = expect_parts(payload, 2, "Uniform")
        peaks = expect_magnitudes(peaks, block_count(spec.numel, self.block), "Uniform scales")
        codes = unpack_bits(packed, spec.numel, self.bits)
        if bool((codes > 2 * self.levels).any()):
            raise DecodeError(f"Uniform: a code above {2 * self.levels} is never sent")
        steps = codes - self.levels
        blocks = as_blocks(steps * (1.0 / self.levels), self.block) * peaks[:, None]
        return narrow(blocks.flatten()[: spec.numel], spec.dtype).view(spec.shape)

    def contract(self, spec: TensorSpec) -> Contract:
        """Tight for one large number, which is exact, and block-1 small ones that fall between two steps."""
        length = max(1, min(self.block, spec.numel))
        spread = (length - 1) / self.levels**2
        if self.rounding == "stochastic":
            return Contract(omega=((1 + spread) ** 0.5 - 1) / 2)
        worst = spread / 4 / (1 + spread / 4)  # one large number, all others half a step
        return Contract(delta=1 - worst)

    def nbytes(self, spec: TensorSpec) -> float:
        return packed_bytes(spec.numel, self.bits) + 4 * block_count(spec.numel, self.block)
