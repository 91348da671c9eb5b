"""Scaled sign (Karimireddy et al., 2019; 1-bit SGD, Seide et al., 2014): send the sign bits and the mean of |x|."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import (
    Capabilities,
    Capability,
    Contract,
    EncodedBatch,
    Key,
    LayerBatch,
    Payload,
    TensorSpec,
    cast_saturating,
)
from ..kernels import CodeForm, Coding, sign_decode, sign_encode, sign_feedback, sign_mean
from ..wire import expect_magnitudes, expect_packed, expect_parts, packed_bytes
from .coded import decode_mean_layers, encode_layers
from .residual import encode_and_subtract


@dataclass(frozen=True)
class ScaledSign:
    """Send sign(x) and the mean of |x|: d + 32 bits. Biased, delta = 1/d at worst; use with error feedback."""

    capabilities: ClassVar[Capabilities] = frozenset(
        {
            Capability.SENDS_EVERY_COORDINATE,
            Capability.EXPECTS_BYTES,
            Capability.FUSES_RESIDUAL,
            Capability.DECODES_MEAN,
            Capability.BATCHES_LAYERS,
        }
    )
    code_form: ClassVar[CodeForm] = CodeForm(Coding.SIGNS)

    def encode(self, tensor: Tensor, key: Key) -> Payload:
        del key  # deterministic
        flat = cast_saturating(tensor.flatten(), torch.float32)
        return self._payload(*sign_encode(flat), flat.numel())

    def encode_with_residual(self, tensor: Tensor, residual: Tensor, key: Key) -> tuple[Payload, Tensor]:
        if tensor.dtype != torch.float32:
            return encode_and_subtract(self, tensor, residual, key)
        signs, scale, new_residual = sign_feedback(tensor.flatten(), residual.flatten())
        return self._payload(signs, scale, tensor.numel()), new_residual.view(tensor.shape)

    def _payload(self, signs: Tensor, scale: Tensor, numel: int) -> Payload:
        return Payload((signs, scale.reshape(1)), *zip(*self.part_labels(numel), strict=True))

    def part_labels(self, numel: int) -> tuple[tuple[str, float], ...]:
        """Kind and model bits of each part."""
        return ("signs", float(numel)), ("scale", 32.0)

    def encode_many(self, batch: LayerBatch, keys: Sequence[Key]) -> EncodedBatch:
        return encode_layers(self, batch, keys)

    def decode(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        del key
        return cast_saturating(sign_decode(*self._parts(payload, spec), spec.numel), spec.dtype).view(spec.shape)

    def decode_mean(
        self, payloads: Sequence[Payload], spec: TensorSpec, keys: Sequence[Key], out: Tensor | None = None
    ) -> Tensor:
        del keys
        parts = [self._parts(payload, spec) for payload in payloads]
        return sign_mean(out, [signs for signs, _ in parts], [scale for _, scale in parts], spec.numel).view(spec.shape)

    def decode_mean_many(
        self,
        payloads: Sequence[Payload],
        specs: Sequence[TensorSpec],
        keys: Sequence[Sequence[Key]],
        outs: Sequence[Tensor],
    ) -> None:
        decode_mean_layers(self, payloads, specs, keys, outs)

    def _parts(self, payload: Payload, spec: TensorSpec) -> tuple[Tensor, Tensor]:
        signs, scale = expect_parts(payload, 2, "ScaledSign")
        scale = expect_magnitudes(scale, 1, "ScaledSign scale")
        return expect_packed(signs, spec.numel, 1), scale

    def contract(self, spec: TensorSpec) -> Contract:
        return Contract(delta=1 / max(1, spec.numel))  # tight for a one-hot tensor

    def num_bytes(self, spec: TensorSpec) -> float:
        return packed_bytes(spec.numel, 1) + 4
