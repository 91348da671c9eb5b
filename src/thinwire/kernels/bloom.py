"""Bloom filters (Bloom, 1970): a set of positions in few bits, without false negatives."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core import Key, derive_key
from .sketch import words

_BLOOM_KEY = "bloom"  # frozen: makes the random bits


def bloom_form(count: int, false_positives: float) -> tuple[int, int]:
    """(bytes, hashes) for `count` positions: 1.44 bits per hash and position; each hash halves the false positives.

    Computed in integers, so that every machine gets the same.
    """
    hashes = 1
    while 0.5**hashes > false_positives:
        hashes += 1
    return max(1, -(-count * hashes * 14427 // 80_000)), hashes


def bloom_bits(positions: Tensor, num_bytes: int, hashes: int, key: Key) -> Tensor:
    """The filter of these positions as uint8; the OR of filters with one form and key is the filter of the union."""
    items, bits = positions.numpy(force=True), np.zeros(8 * num_bytes, np.uint8)
    for j in range(hashes):
        bits[_bit(items, num_bytes, key, j)] = 1
    return torch.from_numpy(np.packbits(bits, bitorder="little"))


def bloom_positions(packed: Tensor, numel: int, hashes: int, key: Key) -> Tensor:
    """All positions below `numel` that may be in the filter, ascending."""
    bits = np.unpackbits(packed.numpy(force=True), bitorder="little")
    items = np.arange(numel)
    for j in range(hashes):
        items = items[bits[_bit(items, packed.numel(), key, j)] == 1]
    return torch.from_numpy(items)


def _bit(items: NDArray[np.int64], num_bytes: int, key: Key, j: int) -> NDArray[np.int64]:
    return words(items, derive_key(key, _BLOOM_KEY, j)) * (8 * num_bytes) >> 32
