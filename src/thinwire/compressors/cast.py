"""Half-precision communication, as torch's fp16 and bf16 hooks: send every value rounded to bf16, fp16 or fp32."""

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
    """Send values rounded to bf16, fp16 or fp32: 16·d or 32·d bits. Too large a value becomes the largest of the type.

    bf16 has the range of fp32, so its relative error is below 2^-8 except at the ends of that range. fp16 rounds values
    below 6e-8 to zero, so it has no contract: a tensor of such values is lost.

    Args:
        dtype: "bf16", "fp16" or "fp32".
    """

    capabilities: ClassVar[Capabilities] = frozenset({Capability.SENDS_EVERY_COORDINATE, Capability.EXPECTS_BYTES})

    dtype: str = "bf16"

    def __post_init__(self) -> None:
        if self.dtype not in TYPES:
            raise CompositionError(f"Cast: dtype must be one of {', '.join(TYPES)}, got {self.dtype!r}")

    def encode(self, tensor: Tensor, key: Key) -> Payload:
        del key  # deterministic: rounds to the nearest
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
