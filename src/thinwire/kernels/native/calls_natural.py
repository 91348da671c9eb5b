"""The C kernels for powers of two as functions of tensors; see `calls`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from ...core import Key
from ..memory import empty
from ..packing import packed_bytes
from .calls import _all_at, _at, _bytes, _counter, _output


def natural_encode(library: ctypes.CDLL, flat: Tensor, key: Key, window: int, most: int) -> Tensor:
    return _natural(library, flat, key, window, most, 0)


def natural_encode_signed(library: ctypes.CDLL, flat: Tensor, key: Key, window: int) -> Tensor:
    return _natural(library, flat, key, window, 127, 128)


def _natural(library: ctypes.CDLL, flat: Tensor, key: Key, window: int, most: int, sign_bit: int) -> Tensor:
    out = _bytes(flat.numel())
    library.tw_natural_encode(
        _at(flat, flat.numel()), flat.numel(), *_counter(key), window, most, sign_bit, out.data_ptr()
    )
    return out


def natural_decode_signed(library: ctypes.CDLL, codes: Tensor, window: int) -> Tensor:
    out = empty(codes.numel())
    library.tw_natural_decode(_at(codes, codes.numel(), torch.uint8), codes.numel(), window, out.data_ptr())
    return out


def exponents_decode(library: ctypes.CDLL, exponents: Tensor, signs: Tensor) -> Tensor:
    n = exponents.numel()
    out = empty(n)
    planes = _at(exponents, n, torch.uint8), _at(signs, packed_bytes(n, 1), torch.uint8)
    library.tw_exponents_decode(*planes, n, out.data_ptr())
    return out


def natural_mean(library: ctypes.CDLL, out: Tensor | None, codes: Sequence[Tensor], window: int) -> Tensor:
    n, ranks = codes[0].numel(), len(codes)
    output = _output(out, n)
    library.tw_natural_mean(_all_at(codes, n, torch.uint8), ranks, n, window, 1 / ranks, output.data_ptr())
    return output


def exponents_mean(
    library: ctypes.CDLL, out: Tensor | None, exponents: Sequence[Tensor], signs: Sequence[Tensor]
) -> Tensor:
    n, ranks = exponents[0].numel(), len(exponents)
    output = _output(out, n)
    planes = _all_at(exponents, n, torch.uint8), _all_at(signs, packed_bytes(n, 1), torch.uint8)
    library.tw_exponents_mean(*planes, ranks, n, 1 / ranks, output.data_ptr())
    return output


def natural_feedback(
    library: ctypes.CDLL, flat: Tensor, before: Tensor, key: Key, window: int
) -> tuple[Tensor, Tensor]:
    n = flat.numel()
    codes, rest = _bytes(n), empty(n)
    numbers = _at(flat, n), _at(before, n), rest.data_ptr()
    library.tw_natural_feedback(*numbers, n, *_counter(key), window, codes.data_ptr())
    return codes, rest


def exponents_feedback(
    library: ctypes.CDLL, flat: Tensor, before: Tensor, key: Key, most: int
) -> tuple[Tensor, Tensor, Tensor]:
    n = flat.numel()
    exponents, signs, rest = _bytes(n), _bytes(packed_bytes(n, 1)), empty(n)
    numbers = _at(flat, n), _at(before, n), rest.data_ptr()
    library.tw_exponents_feedback(*numbers, n, *_counter(key), most, exponents.data_ptr(), signs.data_ptr())
    return exponents, signs, rest
