"""The C kernels of kernels/gaps.py, as functions of tensors; see `calls`."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from ..memory import empty
from ..packing import packed_bytes
from .calls import _at


def rice_parameter(library: ctypes.CDLL, positions: Tensor, start: int, most: int) -> tuple[int, int]:
    k, nbytes = positions.numel(), ctypes.c_int64()
    best = library.tw_rice_parameter(_at(positions, k, torch.int64), k, start, most, ctypes.addressof(nbytes))
    if nbytes.value < 0:
        raise ValueError("positions must ascend from 0")
    return int(best), nbytes.value


def rice_encode(library: ctypes.CDLL, positions: Tensor, shift: int) -> Tensor:
    k = positions.numel()
    at = _at(positions, k, torch.int64)
    beyond = library.tw_gap_sum(at, k, shift)
    if beyond < 0:
        raise ValueError("positions must ascend from 0")
    out = empty(packed_bytes(k, shift) + packed_bytes(k + beyond, 1), torch.uint8).zero_()
    library.tw_rice_encode(at, k, shift, out.data_ptr())
    return out


def rice_decode(library: ctypes.CDLL, packed: Tensor, count: int, shift: int, numel: int) -> Tensor:
    nbytes, out = packed.numel(), empty(count, torch.int64)
    found = library.tw_rice_decode(_at(packed, nbytes, torch.uint8), nbytes, count, shift, numel, out.data_ptr())
    if found != count:
        what = f"are not below {numel}" if found == -2 else f"expected, {'more' if found < 0 else found} found"
        raise ValueError(f"{count} positions {what}")
    return out


def ones(library: ctypes.CDLL, packed: Tensor) -> Tensor:
    n = packed.numel()
    out = torch.empty(library.tw_count_ones(_at(packed, n, torch.uint8), n), dtype=torch.int64)
    library.tw_ones(packed.data_ptr(), n, out.data_ptr())
    return out
