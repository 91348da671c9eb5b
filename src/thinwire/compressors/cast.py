"""Half precision on the wire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import Capabilities, Capability, CompositionError, Contract, Key, Part, Payload, TensorSpec, cast_saturating
from ..wire import expect_parts, expect_vector

TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Cast:
    """Send values rounded to fp32, fp16 or bf16: 32·d or 16·d bits. Too large a number becomes the type's largest.

    bf16 has fp32's range, so its relative error is below 2^-8 everywhere but at the ends of that range; fp16 turns
    numbers below 6e-8 to zero, so it promises nothing for tensors of such numbers.
    """

    capabilities: ClassVar[Capabilities] = frozenset({Capability.SENDS_EVERY_COORDINATE, Capability.EXPECTS_BYTES})

    dtype: str = "bf16"

    def __post_init__(self) -> None:
        if self.dtype not in TYPES:
            raise CompositionError(f"Cast: dtype must be one of {', '.join(TYPES)}, got {self.dtype!r}")

    def encode(self, tensor: Tensor, key: Key) -> Payload:
        del key  # deterministic: rounds to nearest
        flat = cast_saturating(tensor.flatten().contiguous(), TYPES[self.dtype])
        return Payload.of([Part("values", flat, 8.0 * flat.element_size() * flat.numel())])

    def decode(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        del key
        (values,) = expect_parts(payload, 1, "Cast")
        return cast_saturating(expect_vector(values, TYPES[self.dtype], spec.numel, "Cast"), spec.dtype).view(
            spec.shape
        )

    def contract(self, spec: TensorSpec) -> Contract:
        return Contract() if self.dtype == "fp16" else Contract(delta=1 - 2.0**-16)

    def num_bytes(self, spec: TensorSpec) -> float:
        return spec.numel * TYPES[self.dtype].itemsize
