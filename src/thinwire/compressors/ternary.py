"""TernGrad (Wen et al., 2017): send -1, 0 or +1 per value and the largest magnitude of each block."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import Capabilities, Capability, Contract, Key, Part, Payload, TensorSpec, cast_saturating
from ..wire import expect_magnitudes, expect_parts, pack_trits, trits_bytes, unpack_trits
from .blocks import as_blocks, check_block, count_blocks
from .rounding import draw_uniform16


@dataclass(frozen=True)
class Ternary:
    """Send sign(x)·max|block| with probability |x| / max|block|, else zero: 1.6·d + 32·d/block bits. Unbiased.

    Five ternary digits are packed into a byte. omega = (sqrt(block) - 1) / 2, reached by a block of one large and
    block-1 small values.

    Args:
        block: number of values that share a scale.
    """

    capabilities: ClassVar[Capabilities] = frozenset({Capability.EXPECTS_BYTES})

    block: int = 512

    def __post_init__(self) -> None:
        check_block("Ternary", self.block)

    def encode(self, tensor: Tensor, key: Key) -> Payload:
        flat = cast_saturating(tensor.flatten(), torch.float32)
        blocks = as_blocks(flat, self.block)
        peaks = blocks.abs().amax(dim=1) if blocks.numel() else flat
        is_nonzero = (blocks.abs() > draw_uniform16(blocks, key) * peaks[:, None]).to(torch.int32)
        trits = (1 + torch.where(blocks < 0, -is_nonzero, is_nonzero)).flatten()[: flat.numel()]
        return Payload.of(
            [
                Part("trits", pack_trits(trits), math.log2(3) * flat.numel()),
                Part("scales", peaks, 32.0 * peaks.numel()),
            ]
        )

    def decode(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        del key
        packed, peaks = expect_parts(payload, 2, "Ternary")
        peaks = expect_magnitudes(peaks, count_blocks(spec.numel, self.block), "Ternary scales")
        signs = (unpack_trits(packed, spec.numel) - 1).to(torch.float32)
        blocks = as_blocks(signs, self.block) * peaks[:, None]
        return cast_saturating(blocks.flatten()[: spec.numel], spec.dtype).view(spec.shape)

    def contract(self, spec: TensorSpec) -> Contract:
        return Contract(omega=(math.sqrt(max(1, min(self.block, spec.numel))) - 1) / 2)

    def num_bytes(self, spec: TensorSpec) -> float:
        return trits_bytes(spec.numel) + 4 * count_blocks(spec.numel, self.block)
