"""Stochastic rounding to powers of two: the mantissa becomes a probability."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import Contract, Key, Payload, TensorSpec, narrow
from ..kernels import noise16
from .exponents import LARGEST, decode_exponents, encode_exponents, exponents_nbytes


@dataclass(frozen=True)
class Natural:
    """Send sign and exponent of x rounded at random to a neighbouring power of two: 9·d bits. Unbiased, omega = 1/8.

    Works on the bits of float32: noise is added below the exponent, and what carries over rounds up. Numbers below
    2^-126 become 0 or 2^-126 and those above 2^127 become 2^127, so the bound on the variance holds in between.
    """

    def encode(self, tensor: Tensor, key: Key) -> Payload:
        flat = narrow(tensor.flatten().contiguous(), torch.float32)
        magnitude = flat.view(torch.int32) & 0x7FFFFFFF
        noise = (noise16(key, flat.numel(), flat.device) << 7) + 64  # 23 bits, as many as a mantissa has
        return encode_exponents(((magnitude + noise) >> 23).clamp(max=LARGEST), flat < 0)

    def decode(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        del key
        return decode_exponents(payload, spec, "Natural")

    def contract(self, spec: TensorSpec) -> Contract:
        return Contract(omega=1 / 8)

    def nbytes(self, spec: TensorSpec) -> float:
        return exponents_nbytes(spec)
