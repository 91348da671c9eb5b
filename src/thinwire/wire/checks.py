"""What every decoder asks before it allocates."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import DecodeError, Payload, all_finite


def expect_parts(payload: Payload, count: int, caller: str) -> tuple[Tensor, ...]:
    if len(payload.parts) != count:
        raise DecodeError(f"{caller}: {count} parts expected, got {len(payload.parts)}")
    return payload.parts


def expect_vector(part: Tensor, dtype: torch.dtype, numel: int, caller: str) -> Tensor:
    """A vector of just this type and length; numbers in it are finite, as every encoder promises."""
    if part.dtype != dtype or tuple(part.shape) != (numel,):
        raise DecodeError(f"{caller}: {numel} {dtype} expected, got {tuple(part.shape)} {part.dtype}")
    if not all_finite(part):
        raise DecodeError(f"{caller}: a number on the wire is not finite")
    return part


def expect_magnitudes(part: Tensor, numel: int, caller: str) -> Tensor:
    """Norms and scales: float32, finite, not negative."""
    expect_vector(part, torch.float32, numel, caller)
    if bool((part < 0).any()):
        raise DecodeError(f"{caller}: a magnitude on the wire is negative")
    return part
