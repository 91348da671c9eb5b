"""Signed powers of two on the wire: a plane of 8-bit exponents (float32's, 0 for zero) and a plane of sign bits."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import DecodeError, Part, Payload, TensorSpec, cast_saturating
from ..kernels import exponents_decode, pack_signs
from ..wire import expect_packed, expect_parts, expect_vector, packed_bytes

BIAS = 127
LARGEST = 254  # 2^127; 255 would be infinity


def encode_exponents(biased: Tensor, numbers: Tensor) -> Payload:
    """Exponents of these numbers, and their signs."""
    return planes(biased.to(torch.uint8), pack_signs(numbers))


def planes(exponents: Tensor, signs: Tensor) -> Payload:
    numel = exponents.numel()
    return Payload.of([Part("exponents", exponents, 8.0 * numel), Part("signs", signs, float(numel))])


def decode_exponents(payload: Payload, spec: TensorSpec, who: str) -> Tensor:
    return cast_saturating(exponents_decode(*expect_planes(payload, spec, who)), spec.dtype).view(spec.shape)


def expect_planes(payload: Payload, spec: TensorSpec, who: str) -> tuple[Tensor, Tensor]:
    """Exponents and signs; else a DecodeError."""
    exponents, signs = expect_parts(payload, 2, who)
    exponents = expect_vector(exponents, torch.uint8, spec.numel, f"{who} exponents")
    if exponents.numel() and int(exponents.amax()) > LARGEST:
        raise DecodeError(f"{who}: exponent {LARGEST + 1} stands for infinity and is never sent")
    return exponents, expect_packed(signs, spec.numel, 1)


def exponents_nbytes(spec: TensorSpec) -> float:
    return spec.numel + packed_bytes(spec.numel, 1)
