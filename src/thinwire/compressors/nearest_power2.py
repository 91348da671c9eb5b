"""Rounding to the nearest power of two (Khafizov & Beznosikov, 2024): send sign and exponent of every value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..core import Capabilities, Capability, CompositionError, Contract, Key, Payload, TensorSpec
from .exponents import BIAS, LARGEST, decode_exponents, encode_exponents, exponents_num_bytes

_ROUND_UP_FROM = {"value": 0.75, "log": math.sqrt(0.5)}  # mantissas are in [0.5, 1)


@dataclass(frozen=True)
class NearestPower2:
    """Send sign and exponent of the power of two nearest to x: 9·d bits. Biased, delta = 8/9 (value) or 0.828 (log).

    Deterministic. Values below 2^-126 become zero.

    Args:
        metric: "value" takes the power of two that is nearest in value; "log" rounds log2|x|, as the published code.
        max_exponent: larger powers of two are sent as 2^max_exponent, without a contract then; 0 is the published form.
    """

    metric: str = "value"
    max_exponent: int | None = None

    def __post_init__(self) -> None:
        if self.metric not in _ROUND_UP_FROM:
            raise CompositionError(f"NearestPower2: metric must be 'value' or 'log', got {self.metric!r}")
        if self.max_exponent is not None and not 1 - BIAS <= self.max_exponent <= LARGEST - BIAS:
            raise CompositionError(f"NearestPower2: max_exponent must be -126 to 127, got {self.max_exponent}")

    @cached_property
    def capabilities(self) -> Capabilities:
        common = frozenset({Capability.SENDS_EVERY_COORDINATE, Capability.EXPECTS_BYTES})
        return common if self.max_exponent is None else common | {Capability.UNBOUNDED_BIAS}  # of what is above it

    def encode(self, tensor: Tensor, key: Key) -> Payload:
        del key  # deterministic
        flat = tensor.flatten()
        mantissa, exponent = torch.frexp(flat if flat.dtype == torch.float64 else flat.to(torch.float32))
        exponent = exponent.to(torch.int32) - (mantissa.abs() < _ROUND_UP_FROM[self.metric]).to(torch.int32)
        top = LARGEST if self.max_exponent is None else self.max_exponent + BIAS
        biased = (exponent + BIAS).clamp(0, top)
        return encode_exponents(torch.where(mantissa == 0, 0, biased), flat)

    def decode(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        del key
        return decode_exponents(payload, spec, "NearestPower2")

    def contract(self, spec: TensorSpec) -> Contract:
        if self.max_exponent is not None:
            return Contract()
        return Contract(delta=8 / 9 if self.metric == "value" else 1 - (3 - 2 * math.sqrt(2)))

    def num_bytes(self, spec: TensorSpec) -> float:
        return exponents_num_bytes(spec)
