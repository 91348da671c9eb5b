"""Checks of received payloads, which decoders call before they allocate memory."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import DecodeError, Payload, all_finite


def expect_parts(payload: Payload, count: int, caller: str) -> tuple[Tensor, ...]:
    """The parts of a payload, which must be `count`."""
    if len(payload.parts) != count:
        raise DecodeError(f"{caller}: {count} parts expected, got {len(payload.parts)}")
    return payload.parts


def expect_vector(part: Tensor, dtype: torch.dtype, numel: int, caller: str) -> Tensor:
    """The part, which must be a vector of this type and length with finite numbers."""
    if part.dtype != dtype or tuple(part.shape) != (numel,):
        raise DecodeError(f"{caller}: {numel} {dtype} expected, got {tuple(part.shape)} {part.dtype}")
    if not all_finite(part):
        raise DecodeError(f"{caller}: a number on the wire is not finite")
    return part


def expect_magnitudes(part: Tensor, numel: int, caller: str) -> Tensor:
    """The part, which must be norms or scales: float32, finite, not negative."""
    expect_vector(part, torch.float32, numel, caller)
    if bool((part < 0).any()):
        raise DecodeError(f"{caller}: a magnitude on the wire is negative")
    return part
