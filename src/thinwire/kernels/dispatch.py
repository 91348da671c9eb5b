"""Dispatch of kernels: C if it is loaded and supports the tensors, else torch or numpy; the same bits from all."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

from . import (
    allocation,
    batches,
    chunked,
    code_batches,
    codes,
    factor_batches,
    framing,
    matrices,
    packing,
    positions,
    reference,
)
from .native import (
    calls,
    calls_allocation,
    calls_batches,
    calls_code_batches,
    calls_factor_batches,
    calls_framing,
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
from .threads import apply_num_threads

P = ParamSpec("P")
R = TypeVar("R")
_MAX_NATIVE_BITS = 8  # quantizers with more bits are rare


def _is_supported(arguments: Iterable[Any]) -> bool:
    """Whether C can work on all tensors, lists of tensors and devices among the arguments.

    One plain loop, because this runs for every kernel of every layer.
    """
    for argument in arguments:
        if type(argument) is int:
            continue
        if isinstance(argument, Tensor):
            if not (argument.is_cpu and argument.is_contiguous() and argument.numel() > 0):
                return False
        elif isinstance(argument, list | tuple):
            if not (argument and _is_supported(argument)):
                return False
        elif isinstance(argument, torch.device) and argument.type != "cpu":
            return False
    return True


def _dtype(argument: Any) -> torch.dtype | None:
    first = argument[0] if isinstance(argument, list | tuple) and argument else argument
    return first.dtype if isinstance(first, Tensor) else None


def _dispatch(
    plain: Callable[P, R],
    native: Callable[Concatenate[ctypes.CDLL, P], R],
    dtype: torch.dtype | tuple[torch.dtype, ...] | None = torch.float32,
    bits_at: int | None = None,
    without_c: Callable[P, R] | None = None,
) -> Callable[P, R]:
    """A kernel that calls `native` for supported arguments, else `plain`.

    Args:
        plain: the torch expressions.
        native: the C kernel.
        dtype: the type, or types, of the first argument that C supports.
        bits_at: the index of the argument that has the number of bits, which C limits.
        without_c: called instead of `native` where C was not built.
    """
    dtypes = dtype if isinstance(dtype, tuple) else (dtype,)

    @wraps(plain)
    def kernel(*args: P.args, **kwargs: P.kwargs) -> R:
        if not _can_run_native(args, kwargs, dtypes, bits_at):
            return plain(*args, **kwargs)
        loaded = library()
        if loaded is None:
            return (without_c or plain)(*args, **kwargs)
        return native(apply_num_threads(loaded), *args, **kwargs)

    return kernel


def _dispatch_always(plain: Callable[P, R], native: Callable[Concatenate[ctypes.CDLL, P], R]) -> Callable[P, R]:
    """A kernel that calls `native` whenever C is loaded: its arguments are tables, or `native` checks them."""

    @wraps(plain)
    def kernel(*args: P.args, **kwargs: P.kwargs) -> R:
        loaded = library()
        return plain(*args, **kwargs) if loaded is None else native(apply_num_threads(loaded), *args, **kwargs)

    return kernel


def _dispatch_into(
    plain: Callable[P, Tensor],
    native: Callable[Concatenate[ctypes.CDLL, Tensor | None, P], Tensor],
    dtype: torch.dtype = torch.float32,
    bits_at: int | None = None,
) -> Callable[Concatenate[Tensor | None, P], Tensor]:
    """`_dispatch` for kernels that write the result to their first argument, if C can write to it."""

    @wraps(plain)
    def kernel(out: Tensor | None, /, *args: P.args, **kwargs: P.kwargs) -> Tensor:
        loaded = library()
        if loaded is None or not _can_run_native(args, kwargs, (dtype,), bits_at):
            return plain(*args, **kwargs)
        target = out if out is not None and out.dtype == torch.float32 and _is_supported((out,)) else None
        return native(apply_num_threads(loaded), target, *args, **kwargs)

    return kernel


def _can_run_native(
    args: tuple[Any, ...], kwargs: dict[str, Any], dtypes: tuple[torch.dtype | None, ...], bits_at: int | None
) -> bool:
    if bits_at is not None and args[bits_at] > _MAX_NATIVE_BITS:
        return False
    return _dtype(args[0]) in dtypes and _is_supported(args) and (not kwargs or _is_supported(kwargs.values()))


noise16 = _dispatch(reference.noise16, calls.noise16, None)
mean_magnitude = _dispatch(reference.mean_magnitude, calls.mean_magnitude)
largest_magnitudes = _dispatch(codes.largest_magnitudes, calls.largest_magnitudes, without_c=chunked.largest_magnitudes)
positions_reaching = _dispatch(codes.positions_reaching, calls.positions_reaching, without_c=chunked.positions_reaching)
count_below = _dispatch(codes.count_below, calls.count_below)
low_rank = _dispatch_into(codes.low_rank, calls_matrices.low_rank)
subtract_low_rank = _dispatch(codes.subtract_low_rank, calls_matrices.subtract_low_rank)
add_and_project = _dispatch(codes.add_and_project, calls_matrices.add_and_project)
combine_rows = _dispatch(codes.combine_rows, calls_matrices.combine_rows)
orthonormalize = _dispatch(matrices.orthonormalize, calls_matrices.orthonormalize, (torch.float32, torch.float64))
block_peaks = _dispatch(codes.block_peaks, calls.block_peaks)
add_saturated = _dispatch(codes.add_saturated, calls.add_saturated)
qsgd_encode = _dispatch(codes.qsgd_encode, calls.qsgd_encode, bits_at=1)
qsgd_feedback = _dispatch(codes.qsgd_feedback, calls.qsgd_feedback, bits_at=2)
qsgd_decode = _dispatch(codes.qsgd_decode, calls.qsgd_decode, torch.uint8, bits_at=3)
qsgd_mean = _dispatch_into(codes.qsgd_mean, calls.qsgd_mean, torch.uint8, bits_at=3)
uniform_encode = _dispatch(codes.uniform_encode, calls_uniform.uniform_encode)
uniform_feedback = _dispatch(codes.uniform_feedback, calls_uniform.uniform_feedback)
uniform_decode = _dispatch(codes.uniform_decode, calls_uniform.uniform_decode, torch.uint8)
uniform_mean = _dispatch_into(codes.uniform_mean, calls_uniform.uniform_mean, torch.uint8)
natural_encode = _dispatch(codes.natural_encode, calls_natural.natural_encode)
natural_encode_signed = _dispatch(codes.natural_encode_signed, calls_natural.natural_encode_signed)
natural_decode_signed = _dispatch(codes.natural_decode_signed, calls_natural.natural_decode_signed, torch.uint8)
natural_feedback = _dispatch(codes.natural_feedback, calls_natural.natural_feedback)
natural_mean = _dispatch_into(codes.natural_mean, calls_natural.natural_mean, torch.uint8)
pack_signs = _dispatch(codes.pack_signs, calls.pack_signs, without_c=chunked.pack_signs)
sign_encode = _dispatch(codes.sign_encode, calls.sign_encode)
sign_feedback = _dispatch(codes.sign_feedback, calls.sign_feedback)
sign_decode = _dispatch(codes.sign_decode, calls.sign_decode, torch.uint8)
sign_mean = _dispatch_into(codes.sign_mean, calls.sign_mean, torch.uint8)
scatter = _dispatch(codes.scatter, calls.scatter)
take = _dispatch(codes.take, calls.take)
subtract_at = _dispatch(codes.subtract_at, calls.subtract_at)
take_largest = _dispatch(positions.take_largest, calls_positions.take_largest)
sparse_mean = _dispatch_into(positions.sparse_mean, calls_positions.sparse_mean)
encode_positions = _dispatch(positions.encode_positions, calls_positions.encode_positions, torch.int64)
decode_positions = _dispatch(positions.decode_positions, calls_positions.decode_positions, torch.uint8)
exponents_decode = _dispatch(codes.exponents_decode, calls_natural.exponents_decode, torch.uint8)
exponents_feedback = _dispatch(codes.exponents_feedback, calls_natural.exponents_feedback)
exponents_mean = _dispatch_into(codes.exponents_mean, calls_natural.exponents_mean, torch.uint8)
sketch = _dispatch(_sketch, calls_sketch.sketch, (torch.float64, torch.int32))
peeling_order = _dispatch(_peeling_order, calls_sketch.peeling_order, torch.int64)
peel = _dispatch(_peel, calls_sketch.peel, (torch.float32, torch.float64, torch.int32))
solve_allocation = _dispatch(allocation.solve_allocation, calls_allocation.solve_allocation, torch.float64)
framed_length = _dispatch_always(framing.framed_length, calls_framing.framed_length)
pack_parts = _dispatch_always(framing.pack_parts, calls_framing.pack_parts)
unpack_parts = _dispatch_always(framing.unpack_parts, calls_framing.unpack_parts)
take_largest_many = _dispatch_always(batches.take_largest_many, calls_batches.take_largest_many)
add_many = _dispatch_always(batches.add_many, calls_batches.add_many)
take_at_many = _dispatch_always(batches.take_at_many, calls_batches.take_at_many)
positions_reaching_many = _dispatch_always(batches.positions_reaching_many, calls_batches.positions_reaching_many)
kth_magnitudes = _dispatch_always(batches.kth_magnitudes, calls_batches.kth_magnitudes)
project_many = _dispatch_always(factor_batches.project_many, calls_factor_batches.project_many)
combine_many = _dispatch_always(factor_batches.combine_many, calls_factor_batches.combine_many)
low_rank_many = _dispatch_always(factor_batches.low_rank_many, calls_factor_batches.low_rank_many)
take_changes_many = _dispatch_always(batches.take_changes_many, calls_batches.take_changes_many)
add_sparse_many = _dispatch_always(batches.add_sparse_many, calls_batches.add_sparse_many)
subtract_many = _dispatch_always(batches.subtract_many, calls_batches.subtract_many)
sparse_mean_many = _dispatch_always(batches.sparse_mean_many, calls_batches.sparse_mean_many)
encode_codes_many = _dispatch_always(code_batches.encode_codes_many, calls_code_batches.encode_codes_many)
mean_codes_many = _dispatch_always(code_batches.mean_codes_many, calls_code_batches.mean_codes_many)
_pack_wide = _dispatch(packing.pack, calls.pack, torch.int64)
_unpack_wide = _dispatch(packing.unpack, calls.unpack, torch.uint8)


def pack(values: Tensor, bits: int) -> Tensor:
    """Pack integers of `bits` bits. Single bits are packed by numpy, which is as fast as C."""
    return packing.pack(values, bits) if bits == 1 else _pack_wide(values.to(torch.int64), bits)


def unpack(packed: Tensor, count: int, bits: int) -> Tensor:
    """The inverse of `pack`."""
    return (packing.unpack if bits == 1 or count == 0 else _unpack_wide)(packed, count, bits)
