"""A compressor: every n-th coordinate, in turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.core import (
    Capabilities,
    Capability,
    CompositionError,
    Contract,
    Key,
    Part,
    Payload,
    TensorSpec,
    Tunable,
)
from thinwire.wire import expect_parts, expect_vector


@dataclass(frozen=True)
class Stride:
    """Send every `step`-th coordinate, beginning where the key says: b·d/step bits. Biased, delta = 1/step."""

    capabilities: ClassVar[Capabilities] = frozenset({Capability.ADDITIVE, Capability.EXPECTS_BYTES})
    tunable = Tunable("step", 0.5, 2)

    step: int = 2

    def __post_init__(self) -> None:
        if self.step < 1:
            raise CompositionError(f"Stride: step must be at least 1, got {self.step}; 2 sends half")

    def encode(self, tensor: Tensor, key: Key) -> Payload:
        kept = tensor.flatten()[key % self.step :: self.step].clone(memory_format=torch.contiguous_format)
        return Payload.of([Part("values", kept, 8.0 * kept.element_size() * kept.numel())])

    def decode(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        (kept,) = expect_parts(payload, 1, "Stride")
        kept = expect_vector(kept, spec.dtype, len(range(key % self.step, spec.numel, self.step)), "Stride")
        decoded = torch.zeros(spec.numel, dtype=spec.dtype, device=spec.device)
        decoded[key % self.step :: self.step] = kept
        return decoded.view(spec.shape)

    def contract(self, spec: TensorSpec) -> Contract:
        return Contract(delta=1 / self.step)

    def num_bytes(self, spec: TensorSpec) -> float:
        return spec.numel / self.step * spec.dtype.itemsize
