"""Reference form of `encode_with_residual`: encode the target, subtract what decodes from it."""

from __future__ import annotations

from torch import Tensor

from ..core import Compressor, Key, Payload, TensorSpec, saturate


def encode_and_subtract(compressor: Compressor, tensor: Tensor, residual: Tensor, key: Key) -> tuple[Payload, Tensor]:
    """Encode tensor + residual and return the payload and the new residual, for any compressor.

    Fused forms must give the same bits as this one.
    """
    target = saturate(tensor + residual)
    payload = compressor.encode(target, key)
    return payload, saturate(target - compressor.decode(payload, TensorSpec.of("", target), key))
