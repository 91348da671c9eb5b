"""Framing of many parts as one message, in Python: the reference of C.

Layout: the length of each part as a varint, then the parts. A part of 4096 bytes or more begins at a multiple of 8,
with zeros before it, so that it can be read without a copy.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..core import DecodeError, PartTable
from ..core.payloads import Integers
from .varint import read_varint, varint, varint_bytes

_ALIGN_FROM = 4096


def framed_length(lengths: Sequence[int] | Integers) -> int:
    """The bytes of a message with parts of these lengths."""
    return _place([int(length) for length in lengths])[1]


def pack_parts(table: PartTable, out: Tensor) -> Tensor:
    """Write the message with these parts to `out`, which has its length; returns it."""
    lengths = table.lengths.tolist()
    starts, end = _place(lengths)
    message = bytearray(end)
    head = b"".join(map(varint, lengths))
    message[: len(head)] = head
    for address, start, length in zip(table.addresses.tolist(), starts, lengths, strict=True):
        message[start : start + length] = ctypes.string_at(address, length)
    return out.copy_(torch.frombuffer(message, dtype=torch.uint8)) if end else out


def unpack_parts(message: Tensor, count: int) -> tuple[Integers, Integers]:
    """Starts and lengths of the parts of a message.

    Raises:
        DecodeError: the lengths do not add up to the message.
    """
    head = message[: 9 * count].numpy().tobytes()
    lengths, at = [], 0
    for _ in range(count):
        length, at = read_varint(head, at)
        lengths.append(length)
    starts, end = _place(lengths)
    if end != message.numel():
        raise DecodeError(f"a message of {message.numel()} bytes announces {end - sum(lengths)} + {sum(lengths)} bytes")
    return np.array(starts, dtype=np.int64), np.array(lengths, dtype=np.int64)


def _place(lengths: list[int]) -> tuple[list[int], int]:
    """The start of each part, and the end of the last one."""
    at, starts = sum(map(varint_bytes, lengths)), []
    for length in lengths:
        at += -at % 8 if length >= _ALIGN_FROM else 0
        starts.append(at)
        at += length
    return starts, at
