"""Tensors in memory that was used before: pages fresh from the system cost more than filling them.

Layers have the same sizes at every step, so what one step dropped is what the next one needs.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import OrderedDict

import torch
from torch import Tensor

_LEAST = 1 << 16  # bytes: smaller ones the C library keeps by itself
_LINE = 64  # bytes of a cache line, where tensors begin: what straddles two is slower to write
_MOST = 1 << 29  # bytes kept for later, of all sizes together


class Pool:
    """Blocks that nobody uses, by size; beyond `most` bytes those go first whose size was not asked for longest."""

    def __init__(self, most: int = _MOST) -> None:
        self.most, self.num_bytes = most, 0
        self._blocks: OrderedDict[int, list[bytearray]] = OrderedDict()
        self._lock = threading.RLock()  # who takes may be interrupted by the collector, which gives back

    def empty(self, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """As torch.empty on the CPU. Its memory comes back when the last tensor that views it is gone."""
        num_bytes = count * dtype.itemsize
        if num_bytes < _LEAST:
            return torch.empty(count, dtype=dtype)
        block = self._take(num_bytes + _LINE) or bytearray(num_bytes + _LINE)
        handle = (ctypes.c_ubyte * len(block)).from_buffer(block)
        weakref.finalize(handle, self._give_back, block).atexit = False
        return torch.frombuffer(handle, dtype=dtype, count=count, offset=-ctypes.addressof(handle) % _LINE)

    def _take(self, num_bytes: int) -> bytearray | None:
        with self._lock:
            blocks = self._blocks.get(num_bytes)
            if not blocks:
                return None
            self._blocks.move_to_end(num_bytes)
            self.num_bytes -= num_bytes
            return blocks.pop()

    def _give_back(self, block: bytearray) -> None:
        with self._lock:
            self._blocks.setdefault(len(block), []).append(block)
            self.num_bytes += len(block)
            while self.num_bytes > self.most:
                size, blocks = next(iter(self._blocks.items()))
                self.num_bytes -= size * bool(blocks)
                del blocks[:1]
                if not blocks:
                    del self._blocks[size]


empty = Pool().empty
