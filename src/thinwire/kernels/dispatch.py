"""One door: the C kernels where they are loaded and the tensors suit them, else the torch expressions. Same bits."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

from . import allocation, chunked, codes, matrices, packing, positions, reference
from .native import (
    calls,
    calls_allocation,
    calls_matrices,
    calls_natural,
    calls_positions,
    calls_sketch,
    calls_uniform,
    library,
)
from .sketch import peel as _peel
from .sketch import peeling_order as _peeling_order
from .sketch import sketch as _sketch

P = ParamSpec("P")
R = TypeVar("R")
_NATIVE_BITS = 8  # quantizers of more are rare


def _suit(arguments: Iterable[Any]) -> bool:
    """Tensors, lists of tensors and devices that C can work on; other arguments always do.

    One plain loop, because this is asked for every kernel of every layer, and small layers are many.
    """
    for argument in arguments:
        if type(argument) is int:
            continue
        if isinstance(argument, Tensor):
            if not (argument.is_cpu and argument.is_contiguous() and argument.numel() > 0):
                return False
        elif isinstance(argument, list | tuple):
            if not (argument and _suit(argument)):
                return False
        elif isinstance(argument, torch.device) and argument.type != "cpu":
            return False
    return True


def _dtype(argument: Any) -> torch.dtype | None:
    first = argument[0] if isinstance(argument, list | tuple) and argument else argument
    return first.dtype if isinstance(first, Tensor) else None


def _either(
    plain: Callable[P, R],
    native: Callable[Concatenate[ctypes.CDLL, P], R],
    dtype: torch.dtype | tuple[torch.dtype, ...] | None = torch.float32,
    bits_at: int | None = None,
    without_c: Callable[P, R] | None = None,
) -> Callable[P, R]:
    """`native` for arguments that suit it, the first of this type (and, argument `bits_at`, few bits); else `plain`.

    Of several types, any will do. Where C was not built, `without_c` serves for those arguments, if there is one.
    """

    dtypes = dtype if isinstance(dtype, tuple) else (dtype,)

    @wraps(plain)
    def kernel(*args: P.args, **kwargs: P.kwargs) -> R:
        if not _fit(args, kwargs, dtypes, bits_at):
            return plain(*args, **kwargs)
        loaded = library()
        return (without_c or plain)(*args, **kwargs) if loaded is None else native(loaded, *args, **kwargs)

    return kernel


def _writing(
    plain: Callable[P, Tensor],
    native: Callable[Concatenate[ctypes.CDLL, Tensor | None, P], Tensor],
    dtype: torch.dtype = torch.float32,
    bits_at: int | None = None,
) -> Callable[Concatenate[Tensor | None, P], Tensor]:
    """`_either` for results that are written to the memory given first, if it is some that C can write to."""

    @wraps(plain)
    def kernel(out: Tensor | None, /, *args: P.args, **kwargs: P.kwargs) -> Tensor:
        loaded = library()
        if loaded is None or not _fit(args, kwargs, (dtype,), bits_at):
            return plain(*args, **kwargs)
        room = out if out is not None and out.dtype == torch.float32 and _suit((out,)) else None
        return native(loaded, room, *args, **kwargs)

    return kernel


def _fit(
    args: tuple[Any, ...], kwargs: dict[str, Any], dtypes: tuple[torch.dtype | None, ...], bits_at: int | None
) -> bool:
    if bits_at is not None and args[bits_at] > _NATIVE_BITS:
        return False
    return _dtype(args[0]) in dtypes and _suit(args) and (not kwargs or _suit(kwargs.values()))


noise16 = _either(reference.noise16, calls.noise16, None)
mean_magnitude = _either(reference.mean_magnitude, calls.mean_magnitude)
largest_magnitudes = _either(codes.largest_magnitudes, calls.largest_magnitudes, without_c=chunked.largest_magnitudes)
reaching = _either(codes.reaching, calls.reaching, without_c=chunked.reaching)
count_below = _either(codes.count_below, calls.count_below)
low_rank = _writing(codes.low_rank, calls_matrices.low_rank)
subtract_low_rank = _either(codes.subtract_low_rank, calls_matrices.subtract_low_rank)
add_and_project = _either(codes.add_and_project, calls_matrices.add_and_project)
combine_rows = _either(codes.combine_rows, calls_matrices.combine_rows)
orthonormal = _either(matrices.orthonormal, calls_matrices.orthonormal, (torch.float32, torch.float64))
block_peaks = _either(codes.block_peaks, calls.block_peaks)
add_saturated = _either(codes.add_saturated, calls.add_saturated)
qsgd_encode = _either(codes.qsgd_encode, calls.qsgd_encode, bits_at=1)
qsgd_feedback = _either(codes.qsgd_feedback, calls.qsgd_feedback, bits_at=2)
qsgd_decode = _either(codes.qsgd_decode, calls.qsgd_decode, torch.uint8, bits_at=3)
qsgd_mean = _writing(codes.qsgd_mean, calls.qsgd_mean, torch.uint8, bits_at=3)
uniform_encode = _either(codes.uniform_encode, calls_uniform.uniform_encode)
uniform_feedback = _either(codes.uniform_feedback, calls_uniform.uniform_feedback)
uniform_decode = _either(codes.uniform_decode, calls_uniform.uniform_decode, torch.uint8)
uniform_mean = _writing(codes.uniform_mean, calls_uniform.uniform_mean, torch.uint8)
natural_encode = _either(codes.natural_encode, calls_natural.natural_encode)
natural_encode_signed = _either(codes.natural_encode_signed, calls_natural.natural_encode_signed)
natural_decode_signed = _either(codes.natural_decode_signed, calls_natural.natural_decode_signed, torch.uint8)
natural_feedback = _either(codes.natural_feedback, calls_natural.natural_feedback)
natural_mean = _writing(codes.natural_mean, calls_natural.natural_mean, torch.uint8)
pack_signs = _either(codes.pack_signs, calls.pack_signs, without_c=chunked.pack_signs)
sign_encode = _either(codes.sign_encode, calls.sign_encode)
sign_feedback = _either(codes.sign_feedback, calls.sign_feedback)
sign_decode = _either(codes.sign_decode, calls.sign_decode, torch.uint8)
sign_mean = _writing(codes.sign_mean, calls.sign_mean, torch.uint8)
scatter = _either(codes.scatter, calls.scatter)
take = _either(codes.take, calls.take)
subtract_at = _either(codes.subtract_at, calls.subtract_at)
take_largest = _either(positions.take_largest, calls_positions.take_largest)
sparse_mean = _writing(positions.sparse_mean, calls_positions.sparse_mean)
encode_positions = _either(positions.encode_positions, calls_positions.encode_positions, torch.int64)
decode_positions = _either(positions.decode_positions, calls_positions.decode_positions, torch.uint8)
exponents_decode = _either(codes.exponents_decode, calls_natural.exponents_decode, torch.uint8)
exponents_feedback = _either(codes.exponents_feedback, calls_natural.exponents_feedback)
exponents_mean = _writing(codes.exponents_mean, calls_natural.exponents_mean, torch.uint8)
sketch = _either(_sketch, calls_sketch.sketch, (torch.float64, torch.int32))
peeling_order = _either(_peeling_order, calls_sketch.peeling_order, torch.int64)
peel = _either(_peel, calls_sketch.peel, (torch.float32, torch.float64, torch.int32))
cheapest = _either(allocation.cheapest, calls_allocation.cheapest, torch.float64)
_pack_wide = _either(packing.pack, calls.pack, torch.int64)
_unpack_wide = _either(packing.unpack, calls.unpack, torch.uint8)


def pack(values: Tensor, bits: int) -> Tensor:
    """Single bits go numpy's way, which is as fast."""
    return packing.pack(values, bits) if bits == 1 else _pack_wide(values.to(torch.int64), bits)


def unpack(packed: Tensor, count: int, bits: int) -> Tensor:
    return (packing.unpack if bits == 1 or count == 0 else _unpack_wide)(packed, count, bits)
