"""A pool of memory for tensors: new pages from the system cost more than filling them.

Layers have the same sizes at every step, so the memory that one step freed fits the next one.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor

_MIN_BYTES = 1 << 16  # smaller blocks are kept by the C library
_LINE = 64  # bytes of a cache line, to which tensors are aligned: writing across two lines is slower
_MAX_BYTES = 1 << 29  # kept for later, of all sizes


class Pool:
    """Unused blocks by size. Beyond `max_bytes`, blocks of the least recently used size are freed first."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self.max_bytes, self.num_bytes = max_bytes, 0
        self._blocks: OrderedDict[int, list[bytearray]] = OrderedDict()
        self._lock = threading.RLock()  # reentrant: the garbage collector may return a block while one is taken

    def empty(self, count: int, dtype: torch.dtype = torch.float32, varies: bool = False) -> Tensor:
        """As torch.empty on the CPU. The memory returns to the pool when the last tensor that views it is gone.

        varies: the next step will need another size, as of a message; blocks are then up to a sixteenth longer, so that
        they fit again.
        """
        num_bytes = count * dtype.itemsize
        if num_bytes < _MIN_BYTES:
            return torch.empty(count, dtype=dtype)
        size = (_round_up(num_bytes) if varies else num_bytes) + _LINE
        block = self._take(size) or bytearray(size)
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
            while self.num_bytes > self.max_bytes:
                size, blocks = next(iter(self._blocks.items()))
                self.num_bytes -= size * bool(blocks)
                del blocks[:1]
                if not blocks:
                    del self._blocks[size]


def zeros(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """As torch.zeros on the CPU. Memory is taken when it is written to, and returned with the tensor.

    The initial residuals of error feedback are only read, and dropped after the first step.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes < _MIN_BYTES or sys.platform == "win32":  # which has no such flags
        return torch.zeros(tuple(shape), dtype=dtype)
    pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype).view(tuple(shape))


def _round_up(num_bytes: int) -> int:
    """The next of sixteen sizes between two powers of two."""
    unit = max(1, 1 << (num_bytes.bit_length() - 5))
    return -(-num_bytes // unit) * unit


empty = Pool().empty
