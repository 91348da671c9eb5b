"""Rice coding (Rice, 1979) of the gaps between ascending positions, as torch expressions: the reference of C."""

from __future__ import annotations

import torch
from torch import Tensor

from .packing import pack, packed_bytes, unpack


def rice_parameter(positions: Tensor, start: int, limit: int) -> tuple[int, int]:
    """The number of low bits below `limit` that gives the fewest bytes, and that number of bytes.

    Found by descent from `start`: the number of bytes falls, then rises.
    """
    gaps = _gaps(positions)
    best, cost = start, _rice_bytes(gaps, start)
    for way in (-1, 1):
        while 0 <= best + way < limit and (next_cost := _rice_bytes(gaps, best + way)) < cost:
            best, cost = best + way, next_cost
    return best, cost


def _rice_bytes(gaps: Tensor, shift: int) -> int:
    return packed_bytes(gaps.numel(), shift) + packed_bytes(gaps.numel() + int((gaps >> shift).sum()), 1)


def _gaps(positions: Tensor) -> Tensor:
    gaps = positions.diff(prepend=positions.new_full((1,), -1)) - 1
    if bool((gaps < 0).any()):
        raise ValueError("positions must ascend from 0")
    return gaps


def rice_encode(positions: Tensor, shift: int) -> Tensor:
    """The low bits of the gaps, packed, then each gap >> shift in unary: as many zeros, then a one."""
    gaps = _gaps(positions)
    ends = ((gaps >> shift) + 1).cumsum(0) - 1  # where each number has its closing one
    marks = torch.zeros(int(ends[-1]) + 1 if ends.numel() else 0, dtype=torch.uint8, device=positions.device)
    upper = pack(marks.index_fill_(0, ends, 1), 1)
    return torch.cat((pack(gaps & ((1 << shift) - 1), shift), upper)) if shift else upper


def rice_decode(packed: Tensor, count: int, shift: int, numel: int) -> Tensor:
    """The positions that rice_encode wrote; ValueError if they are not `count` positions below numel.

    The caller has checked that there are enough bytes for the low bits.
    """
    low_bytes = packed_bytes(count, shift)
    ends = ones(packed[low_bytes:])
    if ends.numel() != count:
        raise ValueError(f"{count} positions expected, {ends.numel()} found")
    upper = ends.diff(prepend=ends.new_full((1,), -1)) - 1
    if bool((upper > numel >> shift).any()):  # else they might overflow below
        raise ValueError(f"{count} positions are not below {numel}")
    gaps = upper << shift
    if shift:
        gaps |= unpack(packed[:low_bytes], count, shift)
    positions = (gaps + 1).cumsum(0) - 1
    if count and int(positions[-1]) >= numel:
        raise ValueError(f"{count} positions are not below {numel}")
    return positions


def ones(packed: Tensor) -> Tensor:
    """Positions of the bits that are set, ascending."""
    return unpack(packed, 8 * packed.numel(), 1).nonzero().flatten()
