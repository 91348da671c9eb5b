"""Whole numbers of 1 to 56 bits <-> bytes, little end first, eight numbers in as many bytes as a number has bits."""

from __future__ import annotations

from torch import Tensor

from ..kernels import pack, packing, unpack

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
    return packing.expect_packed(packed, count, bits)


def _check_width(caller: str, bits: int) -> None:
    if not 1 <= bits <= MAX_BITS:
        raise ValueError(f"{caller}: bits must be 1 to {MAX_BITS}, got {bits}")
