"""The C kernels of kernels/positions.py, as functions of tensors; see `calls`.

C only reports that its arguments are invalid; the torch expressions raise the error.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from .. import positions as plain
from ..memory import empty
from ..packing import packed_bytes
from ..positions import CodedPositions, TakenValues, first_parameter, width_of
from .calls import _at, _output

_HEAD = 10  # bytes: the coding, and a count


class _Form(NamedTuple):
    """Arguments of C for a number of positions below a limit."""

    start: int  # of the search for the Rice parameter
    width: int  # bits of an explicit position
    num_bytes: int  # none of the codings that C chooses from is longer than explicit positions


@lru_cache(maxsize=4096)  # the same for a layer at every step, unless the count varies
def _form(count: int, numel: int) -> _Form:
    width = width_of(numel)
    return _Form(first_parameter(count, numel), width, _HEAD + packed_bytes(count, width))


def _make_coded_positions(data: Tensor, written: int) -> CodedPositions:
    """C returns the bytes it wrote, and the coding in the lowest two bits."""
    return CodedPositions(data[: written >> 2], written & 3)


def encode_positions(library: ctypes.CDLL, positions: Tensor, numel: int) -> CodedPositions:
    k = positions.numel()
    start, width, num_bytes = _form(k, numel)
    data = empty(num_bytes, torch.uint8)
    written = library.tw_encode_positions(_at(positions, k, torch.int64), k, numel, start, width, data.data_ptr())
    return plain.encode_positions(positions, numel) if written < 0 else _make_coded_positions(data, written)


def decode_positions(library: ctypes.CDLL, data: Tensor, count: int, numel: int) -> Tensor:
    if data.dim() != 1 or count > min(numel, 8 * data.numel()):  # before memory is allocated for them
        return plain.decode_positions(data, count, numel)
    num_bytes, out = data.numel(), empty(count, torch.int64)
    at = _at(data, num_bytes, torch.uint8)
    wrong = library.tw_decode_positions(at, num_bytes, count, numel, width_of(numel), out.data_ptr())
    return plain.decode_positions(data, count, numel) if wrong else out


def take_largest(library: ctypes.CDLL, flat: Tensor, other: Tensor, k: int) -> TakenValues:
    n = flat.numel()
    k = min(k, n)
    start, width, num_bytes = _form(k, n)
    rest, kept, positions, data = empty(n), empty(k), empty(k, torch.int64), empty(num_bytes, torch.uint8)
    written = library.tw_take_largest(
        _at(flat, n), _at(other, n), n, k, start, width,
        rest.data_ptr(), kept.data_ptr(), positions.data_ptr(), data.data_ptr(),
    )  # fmt: skip
    return TakenValues(rest, kept, positions, _make_coded_positions(data, written))


def sparse_mean(
    library: ctypes.CDLL, out: Tensor | None, values: Sequence[Tensor], coded: Sequence[Tensor], count: int
) -> Tensor:
    if any(data.dim() != 1 for data in coded):
        return plain.sparse_mean(values, coded, count)
    output, ranks = _output(out, count), len(values)
    counts, lengths = [kept.numel() for kept in values], [data.numel() for data in coded]
    pointers, numbers = ctypes.c_void_p * ranks, ctypes.c_int64 * ranks
    kept = pointers(*map(_at, values, counts))
    data = pointers(*(_at(each, n, torch.uint8) for each, n in zip(coded, lengths, strict=True)))
    wrong = library.tw_sparse_mean(
        kept, numbers(*counts), data, numbers(*lengths), ranks, count, width_of(count), 1 / ranks, output.data_ptr()
    )
    return plain.sparse_mean(values, coded, count) if wrong else output
