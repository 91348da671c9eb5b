"""Min-max quantization (CGX, Markov et al., 2022): send min and max of each block, and a level for every value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import (
    BITS,
    Capabilities,
    Capability,
    CompositionError,
    Contract,
    DecodeError,
    Key,
    Part,
    Payload,
    TensorSpec,
    cast_saturating,
)
from ..wire import expect_parts, expect_vector, pack_bits, packed_bytes, unpack_bits
from .blocks import as_blocks, check_block, count_blocks
from .rounding import check_rounding, round_to_integers


@dataclass(frozen=True)
class MinMax:
    """Send the level of x between min and max of its block: b·d + 64·d/block bits. Unbiased, E err^2 <= d·u^2/4.

    u = (max - min) / (2^bits - 1) is the distance between two levels. With rounding="nearest" it is biased, with
    |error| <= u/2. The bounds are absolute: there is no delta or omega, since a single outlier in a block makes u
    arbitrarily large.

    Args:
        bits: bits per coordinate, 1 to 16.
        block: number of values that share a min and a max.
        rounding: "stochastic" (unbiased) or "nearest".
    """

    tunable = BITS
    capabilities: ClassVar[Capabilities] = frozenset({Capability.SENDS_EVERY_COORDINATE, Capability.EXPECTS_BYTES})

    bits: int = 4
    block: int = 512
    rounding: str = "stochastic"

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 16:
            raise CompositionError(f"MinMax: bits must be 1 to 16, got {self.bits}; 4 is usual")
        check_block("MinMax", self.block)
        check_rounding("MinMax", self.rounding)

    @property
    def levels(self) -> int:
        """Number of steps between min and max."""
        return (1 << self.bits) - 1

    def encode(self, tensor: Tensor, key: Key) -> Payload:
        flat = cast_saturating(tensor.flatten(), torch.float32)
        low, high = self._bounds(flat)
        blocks = as_blocks(flat, self.block).double() if flat.numel() else flat.view(0, 1).double()
        width = (high.double() - low.double())[:, None]  # in double, since max - min may overflow float32
        fractions = torch.where(width > 0, (blocks - low.double()[:, None]) / width, 0.0).clamp(0, 1)
        levels = round_to_integers((fractions * self.levels).float(), self.rounding, key)
        codes = levels.clamp(0, self.levels).to(torch.int32)
        return Payload.of(
            [
                Part("levels", pack_bits(codes.flatten()[: flat.numel()], self.bits), float(self.bits * flat.numel())),
                Part("bounds", torch.cat((low, high)), 64.0 * low.numel()),
            ]
        )

    def decode(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        del key
        packed, bounds = expect_parts(payload, 2, "MinMax")
        count = count_blocks(spec.numel, self.block)
        low, high = expect_vector(bounds, torch.float32, 2 * count, "MinMax bounds").double().view(2, count)
        if bool((high < low).any()):
            raise DecodeError("MinMax: the max of a block is below its min")
        fractions = as_blocks(unpack_bits(packed, spec.numel, self.bits).double() / self.levels, self.block)
        blocks = low[:, None] * (1 - fractions) + high[:, None] * fractions  # min and max are exact
        return cast_saturating(blocks.flatten()[: spec.numel], spec.dtype).view(spec.shape)

    def contract(self, spec: TensorSpec) -> Contract:
        return Contract()

    def num_bytes(self, spec: TensorSpec) -> float:
        return packed_bytes(spec.numel, self.bits) + 8 * count_blocks(spec.numel, self.block)

    def _bounds(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Return the smallest and the largest value of each block, without the padding of the last one."""
        if flat.numel() == 0:
            return flat, flat
        blocks = as_blocks(flat, self.block)
        padding = blocks.numel() - flat.numel()
        last = blocks[-1, : blocks.shape[1] - padding]
        low, high = blocks.amin(dim=1), blocks.amax(dim=1)
        low[-1], high[-1] = last.min(), last.max()
        return low, high
