"""The nearest power of two: deterministic, meant as a second stage for values that were kept."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..core import Capabilities, Capability, CompositionError, Contract, Key, Payload, TensorSpec
from .exponents import BIAS, LARGEST, decode_exponents, encode_exponents, exponents_nbytes

_MIDDLE = {"value": 0.75, "log": math.sqrt(0.5)}  # of a mantissa in [0.5, 1): from here on it rounds up


@dataclass(frozen=True)
class PowerOfTwo:
    """Send sign and exponent of the power of two nearest to x: 9·d bits. Biased, delta = 8/9 (value) or 0.828 (log).

    rule="value" is nearest in value; rule="log" rounds log2|x|, as S0's code does. `ceiling` is the largest exponent
    sent (S0 never goes above 2^0). Numbers below 2^-126 become zero.
    """

    rule: str = "value"
    ceiling: int | None = None

    def __post_init__(self) -> None:
        if self.rule not in _MIDDLE:
            raise CompositionError(f"PowerOfTwo: rule must be 'value' or 'log', got {self.rule!r}")
        if self.ceiling is not None and not 1 - BIAS <= self.ceiling <= LARGEST - BIAS:
            raise CompositionError(f"PowerOfTwo: ceiling must be -126 to 127, got {self.ceiling}")

    @cached_property
    def capabilities(self) -> Capabilities:
        found = frozenset({Capability.SENDS_EVERY_COORDINATE, Capability.EXPECTS_BYTES})
        return found if self.ceiling is None else found | {Capability.UNBOUNDED_BIAS}  # what is above it

    def encode(self, tensor: Tensor, key: Key) -> Payload:
        del key  # deterministic
        flat = tensor.flatten()
        mantissa, exponent = torch.frexp(flat if flat.dtype == torch.float64 else flat.to(torch.float32))
        exponent = exponent.to(torch.int32) - (mantissa.abs() < _MIDDLE[self.rule]).to(torch.int32)
        top = LARGEST if self.ceiling is None else self.ceiling + BIAS
        biased = (exponent + BIAS).clamp(0, top)
        return encode_exponents(torch.where(mantissa == 0, 0, biased), flat)

    def decode(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        del key
        return decode_exponents(payload, spec, "PowerOfTwo")

    def contract(self, spec: TensorSpec) -> Contract:
        if self.ceiling is not None:
            return Contract()
        return Contract(delta=8 / 9 if self.rule == "value" else 1 - (3 - 2 * math.sqrt(2)))

    def num_bytes(self, spec: TensorSpec) -> float:
        return exponents_nbytes(spec)
