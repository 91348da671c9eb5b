"""Which examples a step's batch has: a pure function of (seed, rank, step)."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from thinwire.core import Key, derive_key
from thinwire.kernels.reference import noise16, noise32

_ORDER_KEY = "order"  # frozen: makes the random bits

_CPU = torch.device("cpu")


def batch_positions(step: int, batch: int, count: int, seed: int, rank: int) -> Tensor:
    """Positions below `count` of the step's examples: epochs follow one another, each in an order of its own.

    Every example comes once an epoch; a batch may end one epoch and begin the next, and may be larger than `count`.
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
    """A permutation of `count` positions; do not change it."""
    return noise32(key, count, _CPU).argsort()  # all words differ, so that the order is the only one


def crop_and_flip(images: Tensor, key: Key, edge: int = 4) -> Tensor:
    """Each image moved by up to `edge` pixels, black coming in, and mirrored or not."""
    count, channels, height, width = images.shape
    draws = noise16(key, 3 * count, _CPU).view(3, count).long()
    down, right = draws[0] % (2 * edge + 1), draws[1] % (2 * edge + 1)
    rows = down[:, None] + torch.arange(height)  # (count, height), in the padded image
    columns = right[:, None] + torch.arange(width)
    columns = torch.where((draws[2] & 1).bool()[:, None], columns.flip(1), columns)
    padded = torch.nn.functional.pad(images, (edge, edge, edge, edge))
    every, channel = torch.arange(count)[:, None, None, None], torch.arange(channels)[None, :, None, None]
    return padded[every, channel, rows[:, None, :, None], columns[:, None, None, :]]
