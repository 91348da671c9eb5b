"""One bit a coordinate."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import Contract, Key, Part, Payload, TensorSpec, narrow
from ..kernels import sign_decode, sign_encode
from ..wire import expect_magnitudes, expect_packed, expect_parts, packed_bytes


@dataclass(frozen=True)
class ScaledSign:
    """Send sign(x) and the mean of |x|: d + 32 bits. Biased, delta = 1/d at worst; pair it with error feedback."""

    def encode(self, tensor: Tensor, key: Key) -> Payload:
        del key  # deterministic
        flat = narrow(tensor.flatten(), torch.float32)
        signs, scale = sign_encode(flat)
        return Payload.of([Part("signs", signs, float(flat.numel())), Part("scale", scale.reshape(1), 32.0)])

    def decode(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        del key
        signs, scale = expect_parts(payload, 2, "ScaledSign")
        scale = expect_magnitudes(scale, 1, "ScaledSign scale")
        flat = sign_decode(expect_packed(signs, spec.numel, 1), scale, spec.numel)
        return narrow(flat, spec.dtype).view(spec.shape)

    def contract(self, spec: TensorSpec) -> Contract:
        return Contract(delta=1 / max(1, spec.numel))  # tight for a one-hot tensor

    def nbytes(self, spec: TensorSpec) -> float:
        return packed_bytes(spec.numel, 1) + 4
