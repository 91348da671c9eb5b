"""Evenly spaced levels in C, as functions of tensors; see `calls`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from ...core import Key
from ..codes import SMALLEST_NORM, refuse_code
from ..memory import empty
from ..packing import packed_bytes
from .calls import _all_at, _at, _blocks, _bytes, _counter, _room


def uniform_encode(
    library: ctypes.CDLL, flat: Tensor, bits: int, block: int, by_chance: bool, key: Key
) -> tuple[Tensor, Tensor]:
    n = flat.numel()
    packed, peaks = _bytes(packed_bytes(n, bits)), torch.empty(_blocks(n, block))
    library.tw_uniform_encode(
        _at(flat, n), n, block, bits, *_counter(key), by_chance, SMALLEST_NORM, peaks.data_ptr(), packed.data_ptr()
    )
    return packed, peaks


def uniform_feedback(
    library: ctypes.CDLL, flat: Tensor, before: Tensor, bits: int, block: int, by_chance: bool, key: Key
) -> tuple[Tensor, Tensor, Tensor]:
    n = flat.numel()
    packed, peaks, rest = _bytes(packed_bytes(n, bits)), torch.empty(_blocks(n, block)), empty(n)
    library.tw_uniform_feedback(
        _at(flat, n), _at(before, n), rest.data_ptr(), n, block, bits, *_counter(key), by_chance, SMALLEST_NORM,
        peaks.data_ptr(), packed.data_ptr(),
    )  # fmt: skip
    return packed, peaks, rest


def uniform_decode(library: ctypes.CDLL, packed: Tensor, peaks: Tensor, count: int, bits: int, block: int) -> Tensor:
    out = empty(count)
    codes, scales = _at(packed, packed_bytes(count, bits), torch.uint8), _at(peaks, _blocks(count, block))
    refuse_code(library.tw_uniform_decode(codes, scales, count, block, bits, out.data_ptr()), bits)
    return out


def uniform_mean(
    library: ctypes.CDLL,
    out: Tensor | None,
    packed: Sequence[Tensor],
    peaks: Sequence[Tensor],
    count: int,
    bits: int,
    block: int,
) -> Tensor:
    room, ranks = _room(out, count), len(packed)
    codes = _all_at(packed, packed_bytes(count, bits), torch.uint8)
    scales = _all_at(peaks, _blocks(count, block), torch.float32)
    refuse_code(library.tw_uniform_mean(codes, scales, ranks, count, block, bits, 1 / ranks, room.data_ptr()), bits)
    return room
