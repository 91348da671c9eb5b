"""The C kernels of the uniform quantizer as functions of tensors; see `calls`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from ...core import Key
from ..codes import SMALLEST_NORM, refuse_code
from ..packing import packed_bytes
from .calls import _at, _blocks, _bytes, _counter, allocate_codes, decode_blocks, mean_of_blocks


def uniform_encode(
    library: ctypes.CDLL, flat: Tensor, bits: int, block: int, stochastic: bool, key: Key
) -> tuple[Tensor, Tensor]:
    n = flat.numel()
    packed, peaks = _bytes(packed_bytes(n, bits)), torch.empty(_blocks(n, block))
    library.tw_uniform_encode(
        _at(flat, n), n, block, bits, *_counter(key), stochastic, SMALLEST_NORM, peaks.data_ptr(), packed.data_ptr()
    )
    return packed, peaks


def uniform_feedback(
    library: ctypes.CDLL, flat: Tensor, before: Tensor, bits: int, block: int, stochastic: bool, key: Key
) -> tuple[Tensor, Tensor, Tensor]:
    n = flat.numel()
    packed, peaks, rest = allocate_codes(n, bits, block)
    library.tw_uniform_feedback(
        _at(flat, n), _at(before, n), rest.data_ptr(), n, block, bits, *_counter(key), stochastic, SMALLEST_NORM,
        peaks.data_ptr(), packed.data_ptr(),
    )  # fmt: skip
    return packed, peaks, rest


def uniform_decode(library: ctypes.CDLL, packed: Tensor, peaks: Tensor, count: int, bits: int, block: int) -> Tensor:
    out, code = decode_blocks(library.tw_uniform_decode, packed, peaks, count, bits, block)
    refuse_code(code, bits)
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
    output, code = mean_of_blocks(library.tw_uniform_mean, out, packed, peaks, count, bits, block)
    refuse_code(code, bits)
    return output
