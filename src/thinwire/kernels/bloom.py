"""Bloom filters: a set of positions in few bits. None is forgotten, some others seem to be in it."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core import Key, derive_key
from .sketch import words

_BLOOM_KEY = "bloom"  # frozen: makes the random bits


def bloom_form(count: int, false_positives: float) -> tuple[int, int]:
    """(bytes, hashes) for `count` positions: 1.44 bits a hash and position, each hash halves the false positives.

    In whole numbers, so that every machine makes the same of it.
    """
    hashes = 1
    while 0.5**hashes > false_positives:
        hashes += 1
    return max(1, -(-count * hashes * 14427 // 80_000)), hashes


def bloom_bits(positions: Tensor, num_bytes: int, hashes: int, key: Key) -> Tensor:
    """The filter that holds these positions, as uint8; filters of one form and key are joined by OR."""
    items, bits = positions.numpy(force=True), np.zeros(8 * num_bytes, np.uint8)
    for j in range(hashes):
        bits[_bit(items, num_bytes, key, j)] = 1
    return torch.from_numpy(np.packbits(bits, bitorder="little"))


def bloom_positions(packed: Tensor, numel: int, hashes: int, key: Key) -> Tensor:
    """All positions below `numel` that may be in the filter, ascending. Reads about two bits for each of them."""
    bits = np.unpackbits(packed.numpy(force=True), bitorder="little")
    items = np.arange(numel)
    for j in range(hashes):
        items = items[bits[_bit(items, packed.numel(), key, j)] == 1]
    return torch.from_numpy(items)


def _bit(items: NDArray[np.int64], num_bytes: int, key: Key, j: int) -> NDArray[np.int64]:
    return words(items, derive_key(key, _BLOOM_KEY, j)) * (8 * num_bytes) >> 32
