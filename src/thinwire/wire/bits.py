"""Whole numbers of 1 to 56 bits <-> bytes, little end first, eight numbers in as many bytes as a number has bits."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import DecodeError
from ..kernels import pack, packed_bytes, unpack

MAX_BITS = 56


def pack_bits(values: Tensor, bits: int) -> Tensor:
    """Bytes holding `values`, each below 2**bits. Booleans and any integer type will do."""
    _check_width("pack_bits", bits)
    return pack(values.flatten(), bits)


def unpack_bits(packed: Tensor, count: int, bits: int) -> Tensor:
    """The `count` numbers in `packed`; uint8 for single bits, else int32, or int64 beyond 24 bits."""
    return unpack(expect_packed(packed, count, bits), count, bits)


def expect_packed(packed: Tensor, count: int, bits: int) -> Tensor:
    """Bytes that `pack_bits` could have made of so many numbers; else a DecodeError."""
    _check_width("unpack_bits", bits)
    if packed.dtype != torch.uint8 or packed.dim() != 1 or packed.numel() != packed_bytes(count, bits):
        needed = packed_bytes(count, bits)
        raise DecodeError(f"{count} numbers of {bits} bits take {needed} B, got {tuple(packed.shape)} {packed.dtype}")
    if count * bits % 8 and int(packed[-1]) >> count * bits % 8:
        raise DecodeError("what fills up the last byte must be zero")
    return packed


def _check_width(who: str, bits: int) -> None:
    if not 1 <= bits <= MAX_BITS:
        raise ValueError(f"{who}: bits must be 1 to {MAX_BITS}, got {bits}")
