"""Whole numbers of few bits <-> bytes, little end first, as plain torch expressions."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ..core import DecodeError


def packed_bytes(count: int, bits: int) -> int:
    return (count * bits + 7) // 8


def expect_packed(packed: Tensor, count: int, bits: int) -> Tensor:
    """Bytes that `pack` could have made of so many numbers; else a DecodeError."""
    if packed.dtype != torch.uint8 or packed.dim() != 1 or packed.numel() != packed_bytes(count, bits):
        needed = packed_bytes(count, bits)
        raise DecodeError(f"{count} numbers of {bits} bits take {needed} B, got {tuple(packed.shape)} {packed.dtype}")
    if count * bits % 8 and int(packed[-1]) >> count * bits % 8:
        raise DecodeError("what fills up the last byte must be zero")
    return packed


def pack(values: Tensor, bits: int) -> Tensor:
    """Bytes holding flat whole numbers (or booleans), each below 2**bits; 1 to 56 bits."""
    if bits == 1 and values.device.type == "cpu":
        return torch.from_numpy(np.packbits(values.numpy(force=True).astype(np.uint8), bitorder="little"))
    lanes = pad(values.to(_word(bits)), (0, -values.numel() % 8)).view(-1, 8)
    starts = 8 * torch.arange(bits, device=values.device)  # each byte's first bit, of the 8 * bits in a row
    packed = _window(lanes, starts, bits, 8)
    return packed.to(torch.uint8).flatten()[: packed_bytes(values.numel(), bits)]


def unpack(packed: Tensor, count: int, bits: int) -> Tensor:
    """The `count` numbers in `packed`; uint8 for single bits, else int32, or int64 beyond 24 bits."""
    if bits == 1 and packed.device.type == "cpu":
        return torch.from_numpy(np.unpackbits(packed.numpy(), count=count, bitorder="little"))
    rows = pad(packed, (0, -packed.numel() % bits)).view(-1, bits).to(_word(bits))
    starts = bits * torch.arange(8, device=packed.device)  # each number's first bit
    values = _window(rows, starts, 8, bits).flatten()[:count]
    return values.to(torch.uint8) if bits == 1 else values


def _window(digits: Tensor, starts: Tensor, have: int, want: int) -> Tensor:
    """Digits of `have` bits, little end first in each row, read as digits of `want` bits that begin at `starts`."""
    first, shift = starts // have, (starts % have).to(digits.dtype)
    span = (have - 1 + want - 1) // have + 1  # so many old digits can meet in a new one
    padded = pad(digits, (0, span))
    joined = padded[:, first]
    for t in range(1, span):
        joined = joined | padded[:, first + t] << (t * have)
    return (joined >> shift) & ((1 << want) - 1)


def _word(bits: int) -> torch.dtype:
    """Wide enough for one number and the seven bits before it."""
    return torch.int64 if bits > 24 else torch.int32
