"""The C kernels of kernels/reference.py and codes.py as functions of tensors, with the library as first argument.

Tensors are on the CPU, contiguous and not empty, which `dispatch` checks.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...core import Key
from ..codes import SMALLEST_NORM
from ..memory import empty
from ..packing import packed_bytes

_ROW = 4096  # of mean_magnitude


def _at(tensor: Tensor, count: int, dtype: torch.dtype = torch.float32) -> int:
    """The address of its `count` elements. Checked again here, since C reads whatever is there."""
    if tensor.dtype != dtype or tensor.numel() != count or not tensor.is_contiguous() or not tensor.is_cpu:
        got = f"{tensor.numel()} {tensor.dtype} on {tensor.device}"
        raise TypeError(f"C kernels: the tensor must be {count} contiguous {dtype} on the CPU, got {got}")
    return tensor.data_ptr()


def _all_at(tensors: Sequence[Tensor], count: int, dtype: torch.dtype) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(tensors))(*(_at(tensor, count, dtype) for tensor in tensors))


def _blocks(count: int, block: int) -> int:
    return -(-count // block)


def _bytes(count: int) -> Tensor:
    return empty(count, torch.uint8)


def _output(out: Tensor | None, count: int) -> Tensor:
    """The caller's memory if it has this size, else new memory."""
    return empty(count) if out is None or out.numel() != count else out.view(-1)


def _counter(key: Key) -> tuple[int, int]:
    """Start and stride of the words of a key; see reference.noise16."""
    return key & 0xFFFFFFFF, ((key >> 32) | 1) & 0xFFFFFFFF


def noise16(library: ctypes.CDLL, key: Key, count: int, device: torch.device) -> Tensor:
    out = torch.empty(count, dtype=torch.int32)
    library.tw_noise16(*_counter(key), count, out.data_ptr())
    return out


def pack(library: ctypes.CDLL, values: Tensor, bits: int) -> Tensor:
    out = _bytes(packed_bytes(values.numel(), bits))
    library.tw_pack_bits(_at(values, values.numel(), torch.int64), values.numel(), bits, out.data_ptr())
    return out


def unpack(library: ctypes.CDLL, packed: Tensor, count: int, bits: int) -> Tensor:
    out = torch.empty(count, dtype=torch.int64)
    library.tw_unpack_bits(_at(packed, packed_bytes(count, bits), torch.uint8), count, bits, out.data_ptr())
    return out if bits > 24 else out.to(torch.int32)


def block_peaks(library: ctypes.CDLL, flat: Tensor, block: int) -> Tensor:
    out = torch.empty(_blocks(flat.numel(), block))
    library.tw_block_peaks(_at(flat, flat.numel()), flat.numel(), block, out.data_ptr())
    return out


def allocate_codes(count: int, bits: int, block: int) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for the results of a quantizer with residual: codes, one scale per block, and the new residual."""
    return _bytes(packed_bytes(count, bits)), torch.empty(_blocks(count, block)), empty(count)


def decode_blocks(
    kernel: Callable[..., Any], packed: Tensor, scales: Tensor, count: int, bits: int, block: int
) -> tuple[Tensor, Any]:
    """Decode codes with one scale per block; also returns the result of the kernel."""
    out = empty(count)
    codes, numbers = _at(packed, packed_bytes(count, bits), torch.uint8), _at(scales, _blocks(count, block))
    return out, kernel(codes, numbers, count, block, bits, out.data_ptr())


def mean_of_blocks(
    kernel: Callable[..., Any],
    out: Tensor | None,
    packed: Sequence[Tensor],
    scales: Sequence[Tensor],
    count: int,
    bits: int,
    block: int,
) -> tuple[Tensor, Any]:
    """The mean of the decoded tensors of all ranks; also returns the result of the kernel."""
    output, ranks = _output(out, count), len(packed)
    codes = _all_at(packed, packed_bytes(count, bits), torch.uint8)
    numbers = _all_at(scales, _blocks(count, block), torch.float32)
    return output, kernel(codes, numbers, ranks, count, block, bits, 1 / ranks, output.data_ptr())


def qsgd_encode(
    library: ctypes.CDLL, flat: Tensor, bits: int, block: int, key: Key, norms: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    n = flat.numel()
    packed, given = _bytes(packed_bytes(n, bits)), norms is not None
    norms = torch.empty(_blocks(n, block)) if norms is None else norms
    scales = _at(norms, _blocks(n, block))
    library.tw_qsgd_encode(
        _at(flat, n), n, block, bits, *_counter(key), given, SMALLEST_NORM, scales, packed.data_ptr()
    )
    return packed, norms


def qsgd_feedback(
    library: ctypes.CDLL, flat: Tensor, before: Tensor, bits: int, block: int, key: Key
) -> tuple[Tensor, Tensor, Tensor]:
    n = flat.numel()
    packed, norms, rest = allocate_codes(n, bits, block)
    library.tw_qsgd_feedback(
        _at(flat, n), _at(before, n), rest.data_ptr(), n, block, bits, *_counter(key), SMALLEST_NORM,
        norms.data_ptr(), packed.data_ptr(),
    )  # fmt: skip
    return packed, norms, rest


def qsgd_decode(library: ctypes.CDLL, packed: Tensor, norms: Tensor, count: int, bits: int, block: int) -> Tensor:
    return decode_blocks(library.tw_qsgd_decode, packed, norms, count, bits, block)[0]


def qsgd_mean(
    library: ctypes.CDLL,
    out: Tensor | None,
    packed: Sequence[Tensor],
    norms: Sequence[Tensor],
    count: int,
    bits: int,
    block: int,
) -> Tensor:
    return mean_of_blocks(library.tw_qsgd_mean, out, packed, norms, count, bits, block)[0]


def _mean_scratch(count: int) -> tuple[float, float, Tensor]:
    """The scales of mean_magnitude before and after summing, and memory for its rows."""
    shrink = 1 << (count - 1).bit_length()
    return 1.0 / shrink, shrink / count, torch.empty(max(1, shrink // _ROW))


def mean_magnitude(library: ctypes.CDLL, flat: Tensor) -> Tensor:
    return _signs_and_mean(library, flat, None)


def pack_signs(library: ctypes.CDLL, flat: Tensor) -> Tensor:
    signs = _bytes(packed_bytes(flat.numel(), 1))
    library.tw_pack_signs(_at(flat, flat.numel()), flat.numel(), signs.data_ptr())
    return signs


def sign_encode(library: ctypes.CDLL, flat: Tensor) -> tuple[Tensor, Tensor]:
    signs = _bytes(packed_bytes(flat.numel(), 1))
    return signs, _signs_and_mean(library, flat, signs.data_ptr())


def _signs_and_mean(library: ctypes.CDLL, flat: Tensor, signs: int | None) -> Tensor:
    share, back, sums = _mean_scratch(flat.numel())
    scale = library.tw_sign_encode(
        _at(flat, flat.numel()), flat.numel(), share, back, sums.data_ptr(), sums.numel(), signs
    )
    return torch.tensor(scale, dtype=torch.float32)


def sign_feedback(library: ctypes.CDLL, flat: Tensor, before: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    n = flat.numel()
    signs, rest, (share, back, sums) = _bytes(packed_bytes(n, 1)), empty(n), _mean_scratch(n)
    scale = library.tw_sign_feedback(
        _at(flat, n), _at(before, n), rest.data_ptr(), n, share, back, sums.data_ptr(), sums.numel(), signs.data_ptr()
    )
    return signs, torch.tensor(scale, dtype=torch.float32), rest


def sign_decode(library: ctypes.CDLL, signs: Tensor, scale: Tensor, count: int) -> Tensor:
    out = empty(count)
    library.tw_sign_decode(_at(signs, packed_bytes(count, 1), torch.uint8), count, float(scale), out.data_ptr())
    return out


def sign_mean(
    library: ctypes.CDLL, out: Tensor | None, signs: Sequence[Tensor], scales: Sequence[Tensor], count: int
) -> Tensor:
    output, ranks, together = _output(out, count), len(signs), torch.cat([scale.reshape(1) for scale in scales])
    packed = _all_at(signs, packed_bytes(count, 1), torch.uint8)
    library.tw_sign_mean(packed, _at(together, ranks), ranks, count, 1 / ranks, output.data_ptr())
    return output


def largest_magnitudes(library: ctypes.CDLL, flat: Tensor, k: int) -> Tensor:
    if k >= flat.numel():
        return torch.arange(flat.numel())
    out = empty(k, torch.int64)
    library.tw_largest(_at(flat, flat.numel()), flat.numel(), k, out.data_ptr())
    return out


def positions_reaching(library: ctypes.CDLL, flat: Tensor, level: float) -> Tensor:
    """Found once and kept as bits, because how many there are must be known first."""
    n = flat.numel()
    bits = _bytes(4 * _blocks(n, 32))
    out = empty(library.tw_reaching(_at(flat, n), n, level, bits.data_ptr()), torch.int64)
    library.tw_ones(bits.data_ptr(), bits.numel(), out.data_ptr())
    return out


def count_below(library: ctypes.CDLL, flat: Tensor, level: float) -> int:
    return int(library.tw_count_below(_at(flat, flat.numel()), flat.numel(), level))


def scatter(library: ctypes.CDLL, values: Tensor, positions: Tensor, count: int) -> Tensor:
    out = empty(count).zero_()
    k = values.numel()
    _inside(library.tw_scatter(_at(values, k), _at(positions, k, torch.int64), k, out.data_ptr(), count), count)
    return out


def take(library: ctypes.CDLL, flat: Tensor, positions: Tensor) -> Tensor:
    n, k = flat.numel(), positions.numel()
    out = torch.empty(k)
    _inside(library.tw_take(_at(flat, n), n, _at(positions, k, torch.int64), k, out.data_ptr()), n)
    return out


def subtract_at(library: ctypes.CDLL, flat: Tensor, positions: Tensor, values: Tensor) -> None:
    n, k = flat.numel(), positions.numel()
    _inside(library.tw_subtract_at(_at(flat, n), n, _at(positions, k, torch.int64), _at(values, k), k), n)


def _inside(outside: int, count: int) -> None:
    if outside:
        raise IndexError(f"{outside} positions are not below {count}")


def add_saturated(library: ctypes.CDLL, flat: Tensor, other: Tensor) -> Tensor:
    out = empty(flat.numel())
    library.tw_add_saturated(_at(flat, flat.numel()), _at(other, flat.numel()), flat.numel(), out.data_ptr())
    return out.view_as(flat)
