"""Sorted positions <-> parts of a payload. Their bytes are in the cheapest of three codings (see `kernels.positions`).

Positions that every rank derives from a common key are not sent at all (see `kernels.distinct_positions`).
"""

from __future__ import annotations

import math
from functools import lru_cache

from torch import Tensor

from ..core import DecodeError, Part
from ..kernels import CodedPositions, decode_positions, encode_positions, packed_bytes, read_count
from ..kernels.positions import width_of
from ..kernels.varint import varint

_KINDS = ("indices:explicit", "indices:bitmap", "indices:rice")


def encode_indices(positions: Tensor, numel: int) -> Part:
    """Ascending, distinct int64 positions below numel, in the fewest bytes the three codings give."""
    return index_part(encode_positions(positions, numel), positions.numel(), numel)


def index_part(coded: CodedPositions, count: int, numel: int) -> Part:
    """`count` positions that are coded already, as a part that is named after their coding."""
    return Part(_KINDS[coded.coding], coded.data, model_index_bits(count, numel))


def decode_indices(blob: Tensor, numel: int, most: int | None = None) -> Tensor:
    """The positions in `blob`: ascending, distinct, below numel, at most `most` of them; else a DecodeError."""
    return decode_positions(blob, expect_count(blob, 0, numel if most is None else min(most, numel)), numel)


def expect_count(blob: Tensor, least: int, most: int) -> int:
    """How many positions `blob` announces, if that is allowed; else a DecodeError."""
    count = read_count(blob)
    if not least <= count <= most:
        raise DecodeError(f"indices: {count} positions announced, at least {least} and at most {most} belong here")
    return count


def expected_index_bytes(count: int, numel: int) -> float:
    """Size of the cheapest coding for positions at random, for plans."""
    return 1 + len(varint(count)) + min(packed_bytes(count, width_of(numel)), model_index_bits(count, numel) / 8)


def ideal_index_bits(count: int, numel: int) -> float:
    """log2 of the number of ways to choose `count` of `numel` places: no coding can do better on average."""
    log_choose = math.lgamma(numel + 1) - math.lgamma(count + 1) - math.lgamma(numel - count + 1)
    return log_choose / math.log(2)


@lru_cache  # a layer's are the same at every step
def model_index_bits(count: int, numel: int) -> float:
    """The formula papers use: the least of explicit, bitmap and Golomb gaps at log2(d/k) + 1.5 bits."""
    if count == 0:
        return 0.0
    return min(count * width_of(numel), numel, count * (math.log2(numel / count) + 1.5))
