"""Wire format of signed powers of two: 8-bit exponents as in float32 (0 for zero), then packed sign bits."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import DecodeError, Payload, TensorSpec, cast_saturating
from ..kernels import exponents_decode, pack_signs
from ..wire import expect_packed, expect_parts, expect_vector, packed_bytes

BIAS = 127
LARGEST = 254  # 2^127; 255 would be infinity


def encode_exponents(biased: Tensor, numbers: Tensor) -> Payload:
    """Return a payload of these biased exponents and the signs of the numbers."""
    return exponent_payload(biased.to(torch.uint8), pack_signs(numbers))


def exponent_payload(exponents: Tensor, signs: Tensor) -> Payload:
    """Return a payload of exponents (uint8) and packed signs."""
    return Payload((exponents, signs), *zip(*exponent_labels(exponents.numel()), strict=True))


def exponent_labels(numel: int) -> tuple[tuple[str, float], ...]:
    """Return kind and model bits of both parts."""
    return ("exponents", 8.0 * numel), ("signs", float(numel))


def decode_exponents(payload: Payload, spec: TensorSpec, part: str) -> Tensor:
    """Return the signed powers of two of a payload; `part` is the name in errors."""
    return cast_saturating(exponents_decode(*expect_planes(payload, spec, part)), spec.dtype).view(spec.shape)


def expect_planes(payload: Payload, spec: TensorSpec, part: str) -> tuple[Tensor, Tensor]:
    """Return exponents and packed signs of a payload; raise DecodeError if they cannot be such."""
    exponents, signs = expect_parts(payload, 2, part)
    exponents = expect_vector(exponents, torch.uint8, spec.numel, f"{part} exponents")
    if exponents.numel() and int(exponents.amax()) > LARGEST:
        raise DecodeError(f"{part}: exponent {LARGEST + 1} stands for infinity, which no encoder sends")
    return exponents, expect_packed(signs, spec.numel, 1)


def exponents_num_bytes(spec: TensorSpec) -> float:
    """Return the payload size: 9 bits per value."""
    return spec.numel + packed_bytes(spec.numel, 1)
