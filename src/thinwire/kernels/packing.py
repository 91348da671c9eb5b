"""Bit packing of integers, little-endian, as torch expressions."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ..core import DecodeError


def packed_bytes(count: int, bits: int) -> int:
    """The bytes of `count` packed integers of `bits` bits."""
    return (count * bits + 7) // 8


def expect_packed(packed: Tensor, count: int, bits: int) -> Tensor:
    """The bytes, if `pack` could have written them for `count` integers; else a DecodeError."""
    if packed.dtype != torch.uint8 or packed.dim() != 1 or packed.numel() != packed_bytes(count, bits):
        needed = packed_bytes(count, bits)
        raise DecodeError(f"{count} numbers of {bits} bits take {needed} B, got {tuple(packed.shape)} {packed.dtype}")
    if count * bits % 8 and int(packed[-1]) >> count * bits % 8:
        raise DecodeError("the padding of the last byte must be zero")
    return packed


def pack(values: Tensor, bits: int) -> Tensor:
    """Pack flat integers (or booleans) below 2**bits; 1 to 56 bits."""
    if bits == 1 and values.device.type == "cpu":
        return torch.from_numpy(np.packbits(values.numpy(force=True).astype(np.uint8), bitorder="little"))
    lanes = pad(values.to(_word(bits)), (0, -values.numel() % 8)).view(-1, 8)
    starts = 8 * torch.arange(bits, device=values.device)  # each byte's first bit, of the 8 * bits in a row
    packed = _window(lanes, starts, bits, 8)
    return packed.to(torch.uint8).flatten()[: packed_bytes(values.numel(), bits)]


def unpack(packed: Tensor, count: int, bits: int) -> Tensor:
    """The `count` integers in `packed`: uint8 for single bits, int32 up to 24 bits, else int64."""
    if bits == 1 and packed.device.type == "cpu":
        return torch.from_numpy(np.unpackbits(packed.numpy(), count=count, bitorder="little"))
    rows = pad(packed, (0, -packed.numel() % bits)).view(-1, bits).to(_word(bits))
    starts = bits * torch.arange(8, device=packed.device)  # each number's first bit
    values = _window(rows, starts, 8, bits).flatten()[:count]
    return values.to(torch.uint8) if bits == 1 else values


def _window(digits: Tensor, starts: Tensor, have: int, want: int) -> Tensor:
    """Rows of digits of `have` bits, little-endian, read as digits of `want` bits that begin at `starts`."""
    first, shift = starts // have, (starts % have).to(digits.dtype)
    span = (have - 1 + want - 1) // have + 1  # old digits that can overlap a new one
    padded = pad(digits, (0, span))
    joined = padded[:, first]
    for t in range(1, span):
        joined = joined | padded[:, first + t] << (t * have)
    return (joined >> shift) & ((1 << want) - 1)


def _word(bits: int) -> torch.dtype:
    """A type wide enough for one integer and the seven bits before it."""
    return torch.int64 if bits > 24 else torch.int32
