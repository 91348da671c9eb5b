"""The sum of the tensors of two ranks, added chunk by chunk while the other rank's tensor is being received.

The socket receives the next bytes while a chunk is added, so that little is left to do when the last byte arrives. A
chunk is received into memory that stays in the cache, which saves writing and reading the other rank's tensor once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels.memory import empty
from ..wire import from_bytes
from .mesh import Receiver, bytes_of

CHUNK_BYTES = 1 << 20  # a multiple of every type's size and of a vector register; shorter chunks wake up more often


def receive_sum(own: Tensor, total: Tensor) -> Receiver:
    """A receiver of the other rank's tensor, which writes the sum with `own` to `total`.

    Args:
        own: this rank's tensor, a contiguous vector on the CPU. It is being sent meanwhile and is not changed.
        total: a vector like it with memory of its own.
    """
    chunk = empty(min(CHUNK_BYTES, own.nbytes), torch.uint8)
    count = CHUNK_BYTES // own.itemsize
    for mine, out in zip(torch.split(own, count), torch.split(total, count), strict=True):
        data = chunk[: mine.nbytes]
        yield bytes_of(data)
        torch.add(mine, from_bytes(data, own.dtype), out=out)  # the same bits in either order
