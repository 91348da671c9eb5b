"""Evenly spaced levels around zero, block by block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..core import Capabilities, Capability, CompositionError, Contract, Key, Part, Payload, TensorSpec, narrow
from ..kernels import uniform_decode, uniform_encode, uniform_feedback, uniform_mean
from ..wire import expect_magnitudes, expect_packed, expect_parts, packed_bytes
from .blocks import QUANTIZES, block_count, check_block, errors_of_some_blocks
from .rest import encode_and_subtract
from .rounding import check_rounding


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

    @cached_property
    def capabilities(self) -> Capabilities:
        few = self.levels < 3  # then most coordinates become zero
        return QUANTIZES if few else QUANTIZES | {Capability.SENDS_EVERY_COORDINATE}

    @property
    def levels(self) -> int:
        return (1 << (self.bits - 1)) - 1

    def encode(self, tensor: Tensor, key: Key) -> Payload:
        flat = narrow(tensor.flatten(), torch.float32)
        return self._payload(*uniform_encode(flat, self.bits, self.block, self._by_chance, key), flat.numel())

    def encode_with_residual(self, tensor: Tensor, residual: Tensor, key: Key) -> tuple[Payload, Tensor]:
        if tensor.dtype != torch.float32:
            return encode_and_subtract(self, tensor, residual, key)
        flat, before = tensor.flatten(), residual.flatten()
        packed, peaks, rest = uniform_feedback(flat, before, self.bits, self.block, self._by_chance, key)
        return self._payload(packed, peaks, tensor.numel()), rest.view(tensor.shape)

    @property
    def _by_chance(self) -> bool:
        return self.rounding == "stochastic"

    def _payload(self, packed: Tensor, peaks: Tensor, numel: int) -> Payload:
        return Payload.of(
            [Part("levels", packed, float(self.bits * numel)), Part("scales", peaks, 32.0 * peaks.numel())]
        )

    def decode(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        del key
        flat = uniform_decode(*self._parts(payload, spec), spec.numel, self.bits, self.block)
        return narrow(flat, spec.dtype).view(spec.shape)

    def decode_mean(
        self, payloads: Sequence[Payload], spec: TensorSpec, keys: Sequence[Key], out: Tensor | None = None
    ) -> Tensor:
        del keys
        parts = [self._parts(payload, spec) for payload in payloads]
        packed, peaks = [part for part, _ in parts], [part for _, part in parts]
        return uniform_mean(out, packed, peaks, spec.numel, self.bits, self.block).view(spec.shape)

    def _parts(self, payload: Payload, spec: TensorSpec) -> tuple[Tensor, Tensor]:
        packed, peaks = expect_parts(payload, 2, "Uniform")
        peaks = expect_magnitudes(peaks, block_count(spec.numel, self.block), "Uniform scales")
        return expect_packed(packed, spec.numel, self.bits), peaks

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

    def errors_along(
        self, tensor: Tensor, spec: TensorSpec, entries: Sequence[Any], key: Key, exact: bool
    ) -> Sequence[float | None]:
        """By some blocks of a large tensor, unless `exact` is asked."""
        alike = [entry if isinstance(entry, Uniform) and entry.block == self.block else None for entry in entries]
        return errors_of_some_blocks(tensor, self.block, alike, key, exact)
