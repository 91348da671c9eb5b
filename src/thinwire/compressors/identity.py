"""No compression: send every value in its own type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..core import Capabilities, Capability, Contract, Key, Payload, TensorSpec
from ..wire import expect_parts, expect_vector


@dataclass(frozen=True)
class Identity:
    """Send every value as it is: b·d bits for d values of b bits. Lossless."""

    capabilities: ClassVar[Capabilities] = frozenset(
        {Capability.LOSSLESS, Capability.ADDITIVE, Capability.SENDS_EVERY_COORDINATE, Capability.EXPECTS_BYTES}
    )

    def encode(self, tensor: Tensor, key: Key) -> Payload:
        del key  # deterministic
        flat = tensor.flatten().contiguous()
        return Payload((flat,), ("values",), (8.0 * flat.nbytes,))

    def decode(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        del key
        (values,) = expect_parts(payload, 1, "Identity")
        return expect_vector(values, spec.dtype, spec.numel, "Identity").view(spec.shape)

    def contract(self, spec: TensorSpec) -> Contract:
        return Contract(delta=1.0, omega=0.0)

    def num_bytes(self, spec: TensorSpec) -> float:
        return spec.numel * spec.dtype.itemsize
