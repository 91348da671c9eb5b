"""Coding of ascending positions, and operations of sparse vectors, as torch expressions: the reference of C.

Layout: one byte (coding, and the Rice parameter), the count as a varint, then the coding's own bytes:
explicit  each position in ceil(log2 d) bits;
bitmap    one bit for each of the d places;
rice      gaps between positions, their low r bits as one plane, then the rest in unary (zeros closed by a one).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..core import DecodeError
from .codes import add_saturated, largest_magnitudes
from .gaps import ones, rice_decode, rice_encode, rice_parameter
from .packing import expect_packed, pack, packed_bytes, unpack
from .varint import read_varint, varint

EXPLICIT, BITMAP, RICE = range(3)


class CodedPositions(NamedTuple):
    """Coded positions, and the number of their coding."""

    data: Tensor
    coding: int


class TakenValues(NamedTuple):
    """The rest of a vector, the values taken out of it, and their positions."""

    rest: Tensor
    kept: Tensor
    positions: Tensor
    coded: CodedPositions


def encode_positions(positions: Tensor, numel: int) -> CodedPositions:
    """Ascending, distinct int64 positions below numel, in the shortest of the three codings."""
    count, width = positions.numel(), width_of(numel)
    r, rice = rice_parameter(positions, first_parameter(count, numel), width)
    cost = (packed_bytes(count, width), packed_bytes(numel, 1), rice)
    coding = min(range(3), key=cost.__getitem__)
    if coding == EXPLICIT:
        body = pack(positions, width)
    elif coding == BITMAP:
        body = pack(torch.zeros(numel, dtype=torch.uint8, device=positions.device).index_fill_(0, positions, 1), 1)
    else:
        body = rice_encode(positions, r)
    head = bytearray([coding | (r << 2 if coding == RICE else 0)]) + varint(count)
    return CodedPositions(torch.cat((torch.frombuffer(head, dtype=torch.uint8).to(body.device), body)), coding)


def decode_positions(data: Tensor, count: int, numel: int) -> Tensor:
    """The `count` positions in `data`, ascending, distinct, below numel; else a DecodeError."""
    coding, r, announced, at = _read_head(data)
    if announced != count or count > numel:
        raise DecodeError(f"indices: {announced} positions announced, {count} of {numel} are needed")
    body, width = data[at:], width_of(numel)
    if coding == EXPLICIT and r == 0:
        packed = expect_packed(body, count, width)
        return _ascending(unpack(packed, count, width).to(torch.int64), numel)
    if coding == BITMAP and r == 0:
        positions = ones(expect_packed(body, numel, 1))
        if positions.numel() != count:
            raise DecodeError(f"indices: the bitmap has {positions.numel()} positions, {count} were announced")
        return positions
    if coding == RICE:
        return _unrice(body, count, r, numel)
    raise DecodeError(f"indices: unknown coding byte {coding | r << 2}")


def read_count(data: Tensor) -> int:
    """The number of positions that a message announces."""
    return _read_head(data)[2]


def take_largest(flat: Tensor, other: Tensor, k: int) -> TakenValues:
    """Take the k largest magnitudes out of the saturated sum, which is zero there afterwards."""
    rest = add_saturated(flat, other)
    positions = largest_magnitudes(rest, k)
    kept = rest[positions]
    rest[positions] = 0
    return TakenValues(rest, kept, positions, encode_positions(positions, flat.numel()))


def sparse_mean(values: Sequence[Tensor], coded: Sequence[Tensor], count: int) -> Tensor:
    """The mean of sparse vectors of `count` elements, given as values and coded positions."""
    total = torch.zeros(count, dtype=values[0].dtype, device=values[0].device)
    for kept, data in zip(values, coded, strict=True):
        total[decode_positions(data, kept.numel(), count)] += kept * (1 / len(values))
    return total


def width_of(numel: int) -> int:
    """Bits of an explicit position."""
    return max(1, (numel - 1).bit_length())


def first_parameter(count: int, numel: int) -> int:
    """The start of the search for the Rice parameter: log2 of the mean gap."""
    return max(0, round(math.log2(max(1.0, numel / max(1, count) * math.log(2)))))


def _read_head(data: Tensor) -> tuple[int, int, int, int]:
    """(coding, Rice parameter, number of positions, where they begin)."""
    if data.dtype != torch.uint8 or data.dim() != 1 or data.numel() < 2:
        raise DecodeError(f"indices: a vector of at least 2 bytes is needed, got {data.dtype} {tuple(data.shape)}")
    head = bytes(data[:11].tolist())
    return head[0] & 3, head[0] >> 2, *read_varint(head, 1)


def _ascending(positions: Tensor, numel: int) -> Tensor:
    if positions.numel() == 0:
        return positions
    if not 0 <= int(positions[0]) <= int(positions[-1]) < numel or bool((positions[1:] <= positions[:-1]).any()):
        raise DecodeError(f"indices: positions must ascend from 0 and stay below {numel}")
    return positions


def _unrice(body: Tensor, count: int, r: int, numel: int) -> Tensor:
    low_bytes = packed_bytes(count, r)
    min_bytes = low_bytes + packed_bytes(count, 1)  # each unary number has at least a one
    max_bytes = low_bytes + packed_bytes(count + (numel >> r), 1)  # the gaps sum to less than numel
    if r > width_of(numel) or not min_bytes <= body.numel() <= max_bytes:
        raise DecodeError(f"indices: {body.numel()} bytes cannot hold {count} gaps with r = {r} below {numel}")
    try:
        return rice_decode(body, count, r, numel)
    except ValueError as error:
        raise DecodeError(f"indices: {error}") from error
