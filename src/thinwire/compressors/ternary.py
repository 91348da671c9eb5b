"""Three values: nothing, or plus or minus the largest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import Capabilities, Capability, Contract, Key, Part, Payload, TensorSpec, cast_saturating
from ..wire import expect_magnitudes, expect_parts, pack_trits, trits_bytes, unpack_trits
from .blocks import as_blocks, block_count, check_block
from .rounding import uniform_noise


@dataclass(frozen=True)
class Ternary:
    """Send sign(x)·max|block| with chance |x| / max|block|, else zero: 1.6·d + 32·d/block bits. Unbiased.

    TernGrad with five trits in a byte. omega = (sqrt(block) - 1) / 2, reached by one large and block-1 small numbers.
    """

    capabilities: ClassVar[Capabilities] = frozenset({Capability.EXPECTS_BYTES})

    block: int = 512

    def __post_init__(self) -> None:
        check_block("Ternary", self.block)

    def encode(self, tensor: Tensor, key: Key) -> Payload:
        flat = cast_saturating(tensor.flatten(), torch.float32)
        blocks = as_blocks(flat, self.block)
        peaks = blocks.abs().amax(dim=1) if blocks.numel() else flat
        chosen = (blocks.abs() > uniform_noise(blocks, key) * peaks[:, None]).to(torch.int32)
        trits = (1 + torch.where(blocks < 0, -chosen, chosen)).flatten()[: flat.numel()]
        return Payload.of(
            [
                Part("trits", pack_trits(trits), math.log2(3) * flat.numel()),
                Part("scales", peaks, 32.0 * peaks.numel()),
            ]
        )

    def decode(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        del key
        packed, peaks = expect_parts(payload, 2, "Ternary")
        peaks = expect_magnitudes(peaks, block_count(spec.numel, self.block), "Ternary scales")
        signs = (unpack_trits(packed, spec.numel) - 1).to(torch.float32)
        blocks = as_blocks(signs, self.block) * peaks[:, None]
        return cast_saturating(blocks.flatten()[: spec.numel], spec.dtype).view(spec.shape)

    def contract(self, spec: TensorSpec) -> Contract:
        return Contract(omega=(math.sqrt(max(1, min(self.block, spec.numel))) - 1) / 2)

    def num_bytes(self, spec: TensorSpec) -> float:
        return trits_bytes(spec.numel) + 4 * block_count(spec.numel, self.block)
