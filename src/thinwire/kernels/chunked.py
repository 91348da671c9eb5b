"""Kernels in numpy for installations without C, in chunks that fit the processor's cache; the same bits as `codes`."""

from __future__ import annotations

import ctypes
import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import codes
from .packing import packed_bytes

_CHUNK = 1 << 16  # elements
_SAMPLE = 16384
_Floats = NDArray[np.float32]


def largest_magnitudes(flat: Tensor, k: int) -> Tensor:
    """The k largest of the candidates above a level, which a sample sets low; else the torch expression."""
    numbers: _Floats = flat.numpy()
    level = _low_level(numbers, k)
    if level is None:
        return codes.largest_magnitudes(flat, k)
    places = _reaching(numbers, level)
    if not k <= len(places) <= len(numbers) // 2:
        return codes.largest_magnitudes(flat, k)
    magnitudes = np.abs(numbers[places])
    least = np.partition(magnitudes, len(places) - k)[len(places) - k]
    taken = magnitudes > least
    taken[np.flatnonzero(magnitudes == least)[: k - np.count_nonzero(taken)]] = True  # among equals the first
    return torch.from_numpy(places[taken])


def _low_level(numbers: _Floats, k: int) -> np.float32 | None:
    """A level four standard deviations below the k-th largest of a sample; None if that would not help."""
    if len(numbers) < 4 * _SAMPLE or k > len(numbers) // 8:
        return None
    sample = np.abs(numbers[:: len(numbers) // _SAMPLE])
    expected = k * len(sample) / len(numbers)
    keep = min(len(sample), int(expected + 4 * math.sqrt(expected)) + 8)
    level: np.float32 = np.partition(sample, len(sample) - keep)[len(sample) - keep]
    return level


def positions_reaching(flat: Tensor, level: float) -> Tensor:
    return torch.from_numpy(_reaching(flat.numpy(), np.float32(ctypes.c_float(level).value)))  # may become infinite


def _reaching(numbers: _Floats, level: np.float32) -> NDArray[np.int64]:
    magnitudes, reached, places = np.empty(_CHUNK, np.float32), np.empty(_CHUNK, np.bool_), []
    for start in range(0, len(numbers), _CHUNK):
        part = numbers[start : start + _CHUNK]
        np.abs(part, out=magnitudes[: len(part)])
        np.greater_equal(magnitudes[: len(part)], level, out=reached[: len(part)])
        places.append(np.flatnonzero(reached[: len(part)]) + start)
    return np.concatenate(places)


def pack_signs(flat: Tensor) -> Tensor:
    numbers: _Floats = flat.numpy()
    packed, negative = np.empty(packed_bytes(len(numbers), 1), np.uint8), np.empty(_CHUNK, np.bool_)
    for start in range(0, len(numbers), _CHUNK):
        part = numbers[start : start + _CHUNK]
        np.less(part, 0, out=negative[: len(part)])
        bits = np.packbits(negative[: len(part)], bitorder="little")
        packed[start // 8 : start // 8 + len(bits)] = bits
    return torch.from_numpy(packed)
