"""Choose the examples of a batch, and augment images; both depend only on (seed, rank, step)."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from thinwire.core import Key, derive_key
from thinwire.kernels.reference import noise16, noise32

_ORDER_KEY = "order"  # frozen: makes the random bits

_CPU = torch.device("cpu")


def batch_positions(step: int, batch: int, count: int, seed: int, rank: int) -> Tensor:
    """Positions (below `count`) of the examples in the batch of a step.

    Every epoch is a new permutation of all examples. A batch may span two epochs and may be larger than `count`.
    """
    begin, end = step * batch, (step + 1) * batch
    pieces = []
    while begin < end:
        epoch, at = divmod(begin, count)
        stop = min(count, at + end - begin)
        pieces.append(permutation(derive_key(seed, _ORDER_KEY, rank, epoch), count)[at:stop])
        begin += stop - at
    return torch.cat(pieces)


@lru_cache(maxsize=64)
def permutation(key: Key, count: int) -> Tensor:
    """A cached permutation of `count` positions; callers must not modify it."""
    return noise32(key, count, _CPU).argsort()  # all words differ, so the order is unique


def crop_and_flip(images: Tensor, key: Key, edge: int = 4) -> Tensor:
    """Shift each image by up to `edge` pixels (zero padding) and mirror half of them at random."""
    count, channels, height, width = images.shape
    draws = noise16(key, 3 * count, _CPU).view(3, count).long()
    down, right = draws[0] % (2 * edge + 1), draws[1] % (2 * edge + 1)
    rows = down[:, None] + torch.arange(height)  # (count, height), in the padded image
    columns = right[:, None] + torch.arange(width)
    columns = torch.where((draws[2] & 1).bool()[:, None], columns.flip(1), columns)
    padded = torch.nn.functional.pad(images, (edge, edge, edge, edge))
    every, channel = torch.arange(count)[:, None, None, None], torch.arange(channels)[None, :, None, None]
    return padded[every, channel, rows[:, None, :, None], columns[:, None, None, :]]
