"""Whole numbers of 1 to 56 bits <-> bytes, little end first, eight numbers in as many bytes as a number has bits."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..core import DecodeError

MAX_BITS = 56


def packed_bytes(count: int, bits: int) -> int:
    return (count * bits + 7) // 8


def pack_bits(values: Tensor, bits: int) -> Tensor:
    """Bytes holding `values`, each below 2**bits. Booleans and any integer type will do."""
    if not 1 <= bits <= MAX_BITS:
        raise ValueError(f"pack_bits: bits must be 1 to {MAX_BITS}, got {bits}")
    flat = values.flatten().to(torch.uint8 if bits == 1 else torch.int64 if bits > 24 else torch.int32)
    lanes = pad(flat, (0, -flat.numel() % 8)).view(-1, 8)
    packed = torch.zeros((lanes.shape[0], bits), dtype=lanes.dtype, device=lanes.device)
    for lane, byte, shift in _overlaps(bits):
        packed[:, byte] |= _shifted(lanes[:, lane], -shift) & 0xFF
    return packed.to(torch.uint8).flatten()[: packed_bytes(values.numel(), bits)]


def unpack_bits(packed: Tensor, count: int, bits: int) -> Tensor:
    """The `count` numbers in `packed`; int32, or int64 beyond 24 bits, or uint8 for single bits."""
    if not 1 <= bits <= MAX_BITS:
        raise ValueError(f"unpack_bits: bits must be 1 to {MAX_BITS}, got {bits}")
    if packed.dtype != torch.uint8 or packed.dim() != 1 or packed.numel() != packed_bytes(count, bits):
        needed = packed_bytes(count, bits)
        raise DecodeError(f"{count} numbers of {bits} bits take {needed} B, got {tuple(packed.shape)} {packed.dtype}")
    dtype = torch.uint8 if bits == 1 else torch.int64 if bits > 24 else torch.int32
    rows = pad(packed, (0, -packed.numel() % bits)).view(-1, bits).to(dtype)
    lanes = torch.zeros((rows.shape[0], 8), dtype=dtype, device=packed.device)
    for lane, byte, shift in _overlaps(bits):
        lanes[:, lane] |= _shifted(rows[:, byte], shift)
    return lanes.flatten()[:count] & ((1 << bits) - 1)


def _overlaps(bits: int) -> list[tuple[int, int, int]]:
    """(lane, byte, shift) wherever the bits of a lane meet those of a byte: byte << shift belongs to the lane."""
    return [
        (lane, byte, 8 * byte - bits * lane)
        for lane in range(8)
        for byte in range(bits * lane // 8, (bits * lane + bits - 1) // 8 + 1)
    ]


def _shifted(words: Tensor, by: int) -> Tensor:
    return words << by if by >= 0 else words >> -by
