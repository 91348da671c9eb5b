"""Uniform quantization in blocks (block-wise: Dettmers et al., 2022): send integers and the peak of each block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from ..core import BITS, Capabilities, Capability, CompositionError, Contract, Key, Payload, TensorSpec, cast_saturating
from ..kernels import CodeForm, Coding, uniform_decode, uniform_encode, uniform_feedback, uniform_mean
from .block_quantizer import BlockQuantizer
from .blocks import QUANTIZER, check_block
from .residual import encode_and_subtract
from .rounding import check_rounding


@dataclass(frozen=True)
class Uniform(BlockQuantizer):
    """Send round(x / s) with s = max|block| / (2^(bits-1) - 1): b·d + 32·d/block bits. Nearest: |error| <= s/2.

    rounding="nearest" is deterministic and biased; "stochastic" is unbiased, with
    omega = (sqrt(1 + (block-1)/levels^2) - 1) / 2. One level less than the bits allow, so that levels are symmetric
    around zero.

    Args:
        bits: bits per coordinate, sign included, 2 to 8.
        block: number of values that share a scale.
        rounding: "nearest" or "stochastic".
    """

    tunable = BITS
    magnitudes: ClassVar[str] = "scales"

    bits: int = 8
    block: int = 512
    rounding: str = "nearest"

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 8:
            raise CompositionError(f"Uniform: bits must be 2 to 8, got {self.bits}; 8 is usual")
        check_block("Uniform", self.block)
        check_rounding("Uniform", self.rounding)

    @cached_property
    def capabilities(self) -> Capabilities:
        makes_zeros = self.levels < 3  # then most coordinates become zero
        batching = QUANTIZER | {Capability.BATCHES_LAYERS}
        return batching if makes_zeros else batching | {Capability.SENDS_EVERY_COORDINATE}

    @cached_property
    def code_form(self) -> CodeForm:
        return CodeForm(Coding.RANDOM_STEPS if self._is_stochastic else Coding.STEPS, self.bits, self.block)

    def encode(self, tensor: Tensor, key: Key) -> Payload:
        flat = cast_saturating(tensor.flatten(), torch.float32)
        return self._payload(*uniform_encode(flat, self.bits, self.block, self._is_stochastic, key), flat.numel())

    def encode_with_residual(self, tensor: Tensor, residual: Tensor, key: Key) -> tuple[Payload, Tensor]:
        if tensor.dtype != torch.float32:
            return encode_and_subtract(self, tensor, residual, key)
        flat, old_residual = tensor.flatten(), residual.flatten()
        packed, peaks, new_residual = uniform_feedback(
            flat, old_residual, self.bits, self.block, self._is_stochastic, key
        )
        return self._payload(packed, peaks, tensor.numel()), new_residual.view(tensor.shape)

    @property
    def _is_stochastic(self) -> bool:
        return self.rounding == "stochastic"

    def decode_flat(self, packed: Tensor, magnitudes: Tensor, count: int) -> Tensor:
        return uniform_decode(packed, magnitudes, count, self.bits, self.block)

    def mean_flat(
        self, out: Tensor | None, packed: Sequence[Tensor], magnitudes: Sequence[Tensor], count: int
    ) -> Tensor:
        return uniform_mean(out, packed, magnitudes, count, self.bits, self.block)

    def contract(self, spec: TensorSpec) -> Contract:
        """Return bounds that are tight for a block of one large value, which is exact, and block-1 small ones."""
        length = max(1, min(self.block, spec.numel))
        spread = (length - 1) / self.levels**2
        if self.rounding == "stochastic":
            return Contract(omega=((1 + spread) ** 0.5 - 1) / 2)
        worst = spread / 4 / (1 + spread / 4)  # one large value, all others half a step
        return Contract(delta=1 - worst)
