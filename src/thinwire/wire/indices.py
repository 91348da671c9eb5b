"""Sorted positions <-> bytes. Three codings; the cheapest is chosen per message and named in its kind.

Layout: one byte (coding, and the Rice parameter), the count as a varint, then the coding's own bytes:
explicit  each position in ceil(log2 d) bits;
bitmap    one bit for each of the d places;
rice      gaps between positions, their low r bits as one plane, then the rest in unary (zeros closed by a one).
Positions that every rank derives from a common key are not sent at all (see `kernels.distinct_positions`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core import DecodeError, Part
from ..kernels import ones, packed_bytes, rice_decode, rice_encode, rice_parameter
from .bits import expect_packed, pack_bits, unpack_bits
from .varint import read_varint, varint

_EXPLICIT, _BITMAP, _RICE = range(3)
_NAMES = ("explicit", "bitmap", "rice")


def encode_indices(positions: Tensor, numel: int) -> Part:
    """Ascending, distinct int64 positions below numel, in the fewest bytes the three codings give."""
    count = positions.numel()
    r, rice = best_rice(positions, numel)
    cost = (packed_bytes(count, _width(numel)), (numel + 7) // 8, rice)
    coding = min(range(3), key=cost.__getitem__)
    if coding == _EXPLICIT:
        body = pack_bits(positions, _width(numel))
    elif coding == _BITMAP:
        body = pack_bits(_marks(positions, numel), 1)
    else:
        body = rice_encode(positions, r)
    head = bytearray([coding | (r << 2 if coding == _RICE else 0)]) + varint(count)
    blob = torch.cat((torch.frombuffer(head, dtype=torch.uint8).to(body.device), body))
    return Part(f"indices:{_NAMES[coding]}", blob, model_index_bits(count, numel))


def decode_indices(blob: Tensor, numel: int, most: int | None = None) -> Tensor:
    """The positions in `blob`: ascending, distinct, below numel, at most `most` of them; else a DecodeError."""
    if blob.dtype != torch.uint8 or blob.dim() != 1 or blob.numel() < 2:
        raise DecodeError(f"indices: a vector of at least 2 bytes is needed, got {blob.dtype} {tuple(blob.shape)}")
    head = bytes(blob[:11].tolist())
    coding, r = head[0] & 3, head[0] >> 2
    count, at = read_varint(head, 1)
    most = numel if most is None else min(most, numel)
    if count > most:
        raise DecodeError(f"indices: {count} positions announced, at most {most} fit here")
    body = blob[at:]
    if coding == _EXPLICIT and r == 0:
        return _ascending(unpack_bits(body, count, _width(numel)).to(torch.int64), numel)
    if coding == _BITMAP and r == 0:
        positions = ones(expect_packed(body, numel, 1))
        if positions.numel() != count:
            raise DecodeError(f"indices: the bitmap marks {positions.numel()} places, {count} were announced")
        return positions
    if coding == _RICE:
        return _unrice(body, count, r, numel)
    raise DecodeError(f"indices: unknown coding byte {head[0]}")


def expected_index_bytes(count: int, numel: int) -> float:
    """Size of the cheapest coding for positions at random, for plans."""
    return 1 + len(varint(count)) + min(packed_bytes(count, _width(numel)), model_index_bits(count, numel) / 8)


def ideal_index_bits(count: int, numel: int) -> float:
    """log2 of the number of ways to choose `count` of `numel` places: no coding can do better on average."""
    log_choose = math.lgamma(numel + 1) - math.lgamma(count + 1) - math.lgamma(numel - count + 1)
    return log_choose / math.log(2)


def model_index_bits(count: int, numel: int) -> float:
    """The formula papers use: the least of explicit, bitmap and Golomb gaps at log2(d/k) + 1.5 bits."""
    if count == 0:
        return 0.0
    return min(count * _width(numel), numel, count * (math.log2(numel / count) + 1.5))


def _width(numel: int) -> int:
    return max(1, (numel - 1).bit_length())


def _marks(positions: Tensor, numel: int) -> Tensor:
    return torch.zeros(numel, dtype=torch.uint8, device=positions.device).index_fill_(0, positions, 1)


def _ascending(positions: Tensor, numel: int) -> Tensor:
    if positions.numel() == 0:
        return positions
    if not 0 <= int(positions[0]) <= int(positions[-1]) < numel or bool((positions[1:] <= positions[:-1]).any()):
        raise DecodeError(f"indices: positions must ascend from 0 and stay below {numel}")
    return positions


def best_rice(positions: Tensor, numel: int) -> tuple[int, int]:
    """The parameter that gives the fewest bytes, and these; looked for from log2 of the mean gap."""
    mean_gap = numel / max(1, positions.numel())
    return rice_parameter(positions, max(0, round(math.log2(max(1.0, mean_gap * math.log(2))))), _width(numel))


def _unrice(body: Tensor, count: int, r: int, numel: int) -> Tensor:
    low_bytes = packed_bytes(count, r)
    least = low_bytes + packed_bytes(count, 1)  # every unary part has its one
    most = low_bytes + packed_bytes(count + (numel >> r), 1)  # and they cannot add up to more
    if r > _width(numel) or not least <= body.numel() <= most:
        raise DecodeError(f"indices: {body.numel()} bytes cannot hold {count} gaps with r = {r} below {numel}")
    try:
        return rice_decode(body, count, r, numel)
    except ValueError as error:
        raise DecodeError(f"indices: {error}") from error
