"""Tensors in memory that was used before: pages fresh from the system cost more than filling them.

Layers have the same sizes at every step, so what one step dropped is what the next one needs.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import OrderedDict

import torch
from torch import Tensor

_LEAST = 1 << 16  # bytes: smaller ones the C library keeps by itself
_MOST = 1 << 29  # bytes kept for later, of all sizes together

_kept: OrderedDict[int, list[bytearray]] = OrderedDict()  # by size; what was asked for last stands last


def empty(count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """As torch.empty on the CPU. Its memory comes back here when the last tensor that views it is gone."""
    nbytes = count * dtype.itemsize
    if nbytes < _LEAST:
        return torch.empty(count, dtype=dtype)
    block = _taken(nbytes)
    handle = (ctypes.c_ubyte * nbytes).from_buffer(block)
    weakref.finalize(handle, _give_back, block).atexit = False
    return torch.frombuffer(handle, dtype=dtype)


def _taken(nbytes: int) -> bytearray:
    try:
        block = _kept[nbytes].pop()
        _kept.move_to_end(nbytes)
        return block
    except (KeyError, IndexError):  # none there, or another thread was quicker
        return bytearray(nbytes)


def _give_back(block: bytearray) -> None:
    _kept.setdefault(len(block), []).append(block)
    while sum(size * len(blocks) for size, blocks in list(_kept.items())) > _MOST:
        try:
            _kept.popitem(last=False)
        except KeyError:
            return
