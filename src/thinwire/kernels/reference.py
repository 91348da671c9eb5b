"""Noise, sums and selection as torch expressions: the reference that every faster kernel matches bit for bit.

Nothing here depends on a generator, a summation order or a device: noise is a hash of (key, element), sums are taken
along a fixed tree, and ties are broken by position.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from ..core import Key

_LARGEST = torch.finfo(torch.float32).max
_MIX_1, _MIX_2 = 0x7FEB352D, 0x846CA68B - (1 << 32)  # multipliers of a 32-bit finaliser, as signed words


Words = TypeVar("Words", Tensor, NDArray[np.int32])


def mix32(words: Words) -> Words:
    """A bijective 32-bit hash of int32 words (torch or numpy), with the overflow of unsigned arithmetic."""
    words = (words ^ ((words >> 16) & 0xFFFF)) * _MIX_1
    words = (words ^ ((words >> 15) & 0x1FFFF)) * _MIX_2
    return words ^ ((words >> 16) & 0xFFFF)


def noise16(key: Key, count: int, device: torch.device) -> Tensor:
    """`count` uniform draws from 0 ... 65535 as int32; one hashed word gives two neighboring elements.

    The counter advances by an odd number of the key's own, so that two keys do not give shifted copies of one sequence.
    """
    words = _words(key, (count + 1) // 2, device)
    return torch.stack((words & 0xFFFF, (words >> 16) & 0xFFFF), dim=1).flatten()[:count]


def noise32(key: Key, count: int, device: torch.device) -> Tensor:
    """`count` uniform draws from 0 ... 2^32 - 1 as int64, all different: for draws that compare elements."""
    return _words(key, count, device).to(torch.int64) & 0xFFFFFFFF


def _words(key: Key, count: int, device: torch.device) -> Tensor:
    """`count` hashed words, all different: the stride is odd and the hash a bijection."""
    start, stride = _signed(key), _signed((key >> 32) | 1)
    return mix32(torch.arange(count, dtype=torch.int32, device=device) * stride + start)


def _signed(word: int) -> int:
    word &= 0xFFFFFFFF
    return word - (1 << 32) if word >> 31 else word


_ROW = 4096  # sums are taken in rows of this length first, so that a streaming form can do the same


def tree_sum(rows: Tensor) -> Tensor:
    """Sums over the last dimension along a binary tree: the same bits on every machine, and a small error."""
    width = 1 << max(0, rows.shape[-1] - 1).bit_length()
    rows = pad(rows, (0, width - rows.shape[-1]))
    while rows.shape[-1] > 1:
        half = rows.shape[-1] // 2
        rows = rows[..., :half] + rows[..., half:]
    return rows[..., 0]


def mean_magnitude(flat: Tensor) -> Tensor:
    """Mean of |x| as one float32, added along fixed trees; scaled down first, so that it cannot overflow."""
    count = flat.numel()
    if count == 0:
        return torch.zeros((), dtype=torch.float32, device=flat.device)
    shrink = 1 << (count - 1).bit_length()  # a power of two: exact
    shares = pad(flat.abs().to(torch.float32) * (1.0 / shrink), (0, -count % _ROW)).view(-1, _ROW)
    mean = tree_sum(tree_sum(shares)) * (shrink / count)
    return mean.clamp(max=_LARGEST)  # the last product may round past the largest float32


_SAMPLE = 16384


def largest(magnitudes: Tensor, k: int) -> Tensor:
    """Positions of the k largest, ascending; of equal ones the first. Exact for any prefilter."""
    d = magnitudes.numel()
    if k >= d:
        return torch.arange(d, device=magnitudes.device)
    candidates = _prefilter(magnitudes, k)
    if candidates is None:
        return _largest(magnitudes, k)
    return candidates[_largest(magnitudes[candidates], k)]


def _prefilter(magnitudes: Tensor, k: int) -> Tensor | None:
    """Positions that include the k largest, by a low threshold from a sample; None if that would not help."""
    d = magnitudes.numel()
    if d < 4 * _SAMPLE or k > d // 8:
        return None
    sample = magnitudes[:: d // _SAMPLE]
    expected = k * sample.numel() / d
    keep = int(expected + 4 * expected**0.5) + 8  # four standard deviations more
    threshold = sample.topk(min(keep, sample.numel())).values[-1]
    candidates = (magnitudes >= threshold).nonzero().flatten()
    return candidates if k <= candidates.numel() <= d // 2 else None


def _largest(magnitudes: Tensor, k: int) -> Tensor:
    threshold = magnitudes.topk(k).values[-1]
    above = (magnitudes > threshold).nonzero().flatten()
    level = (magnitudes == threshold).nonzero().flatten()[: k - above.numel()]
    return torch.cat((above, level)).sort().values  # sorted, because gaps of sorted positions code shorter


def distinct_positions(key: Key, count: int, numel: int, device: torch.device) -> Tensor:
    """`count` different positions below `numel`, ascending: the first images of a keyed permutation.

    Work grows with `count`, not with `numel`; positions are right beyond 2^31. A Feistel network permutes the next
    power of two; images outside are walked along their cycle until they fall inside. Up to 4096 places are ordered
    by their mixed words instead: that is quicker, and a network of few bits would mix unevenly.
    """
    draw = _cached_positions if count <= 4096 else _draw_positions
    return draw(key, min(count, numel), numel, device)


def _draw_positions(key: Key, count: int, numel: int, device: torch.device) -> Tensor:
    """Computed on the CPU for every device: few numbers, many small operations."""
    if count == numel:
        return torch.arange(numel, device=device)
    if numel <= 4096:
        return _words(key, numel, device).argsort()[:count].sort().values
    bits = (numel - 1).bit_length()
    positions = _feistel(np.arange(count), key, bits)
    outside = np.flatnonzero(positions >= numel)
    while outside.size:
        positions[outside] = _feistel(positions[outside], key, bits)
        outside = outside[positions[outside] >= numel]
    return torch.from_numpy(np.sort(positions)).to(device)


# Encoder and decoder draw the same positions; for few, computing costs more than memory.
_cached_positions = lru_cache(maxsize=256)(_draw_positions)


def _feistel(words: NDArray[np.int64], key: Key, bits: int, rounds: int = 6) -> NDArray[np.int64]:
    """A keyed permutation of 0 ... 2^bits - 1: an unbalanced Feistel network."""
    low_bits = bits // 2
    low_mask, high_mask = (1 << low_bits) - 1, (1 << (bits - low_bits)) - 1
    high, low = words >> low_bits, words & low_mask
    for turn in range(rounds):
        salt = np.int32(_signed((key >> (8 * (turn % 4))) ^ (key >> 32) ^ (turn * 0x9E3779B9)))
        if turn % 2 == 0:
            high = (high ^ mix32(low.astype(np.int32) + salt)) & high_mask
        else:
            low = (low ^ mix32(high.astype(np.int32) + salt)) & low_mask
    return high << low_bits | low
