"""The C kernels of kernels/framing.py; see `calls`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ...core import PartTable
from ...core.payloads import Integers
from .. import framing as plain
from .calls import _at


def framed_length(library: ctypes.CDLL, lengths: Sequence[int] | Integers) -> int:
    numbers = np.ascontiguousarray(lengths, dtype=np.int64)
    return int(library.tw_framed_bytes(numbers.ctypes.data, len(numbers)))


def pack_parts(library: ctypes.CDLL, table: PartTable, out: Tensor) -> Tensor:
    addresses, lengths = map(np.ascontiguousarray, table)
    target = _at(out, framed_length(library, lengths), torch.uint8)
    library.tw_pack_parts(addresses.ctypes.data, lengths.ctypes.data, len(lengths), target)
    return out


def unpack_parts(library: ctypes.CDLL, message: Tensor, count: int) -> tuple[Integers, Integers]:
    starts, lengths = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    source = _at(message, message.numel(), torch.uint8)
    wrong = library.tw_unpack_parts(source, message.numel(), count, starts.ctypes.data, lengths.ctypes.data)
    return plain.unpack_parts(message, count) if wrong else (starts, lengths)
