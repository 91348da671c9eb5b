"""Bit packing of integers of 1 to 56 bits, little-endian."""

from __future__ import annotations

from torch import Tensor

from ..kernels import pack, packing, unpack

MAX_BITS = 56


def pack_bits(values: Tensor, bits: int) -> Tensor:
    """Pack `values`, each below 2**bits, of any integer type or bool."""
    _check_width("pack_bits", bits)
    return pack(values.flatten(), bits)


def unpack_bits(packed: Tensor, count: int, bits: int) -> Tensor:
    """The `count` integers in `packed`: uint8 for single bits, int32 up to 24 bits, else int64."""
    return unpack(expect_packed(packed, count, bits), count, bits)


def expect_packed(packed: Tensor, count: int, bits: int) -> Tensor:
    """The bytes, if `pack_bits` could have written them for `count` integers; else a DecodeError."""
    _check_width("unpack_bits", bits)
    return packing.expect_packed(packed, count, bits)


def _check_width(caller: str, bits: int) -> None:
    if not 1 <= bits <= MAX_BITS:
        raise ValueError(f"{caller}: bits must be 1 to {MAX_BITS}, got {bits}")
