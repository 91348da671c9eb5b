"""What a payload leaves of a tensor."""

from __future__ import annotations

from torch import Tensor

from ..core import Compressor, Key, Payload, TensorSpec, saturate


def encode_and_subtract(compressor: Compressor, tensor: Tensor, residual: Tensor, key: Key) -> tuple[Payload, Tensor]:
    """What FusedResidualEncoder promises, for any compressor: its definition."""
    target = saturate(tensor + residual)
    payload = compressor.encode(target, key)
    return payload, saturate(target - compressor.decode(payload, TensorSpec.of("", target), key))
