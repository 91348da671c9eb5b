"""Index coding: sorted positions as parts of a payload, in the shortest of three codings (see `kernels.positions`).

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

INDEX_KINDS = ("indices:explicit", "indices:bitmap", "indices:rice")


def encode_indices(positions: Tensor, numel: int) -> Part:
    """Ascending, distinct int64 positions below numel, in the shortest of the three codings."""
    return index_part(encode_positions(positions, numel), positions.numel(), numel)


def index_part(coded: CodedPositions, count: int, numel: int) -> Part:
    """Coded positions as a part of a payload; its kind names the coding."""
    return Part(INDEX_KINDS[coded.coding], coded.data, model_index_bits(count, numel))


def decode_indices(blob: Tensor, numel: int, max_count: int | None = None) -> Tensor:
    """The positions in `blob`: ascending, distinct, below numel, at most `max_count`; else a DecodeError."""
    return decode_positions(blob, expect_count(blob, 0, numel if max_count is None else min(max_count, numel)), numel)


def expect_count(blob: Tensor, min_count: int, max_count: int) -> int:
    """The number of positions that `blob` announces, which must be within these limits; else a DecodeError."""
    count = read_count(blob)
    if not min_count <= count <= max_count:
        raise DecodeError(f"indices: {count} positions announced, expected {min_count} to {max_count}")
    return count


def expected_index_bytes(count: int, numel: int) -> float:
    """The size of the shortest coding of random positions, for plans."""
    return 1 + len(varint(count)) + min(packed_bytes(count, width_of(numel)), model_index_bits(count, numel) / 8)


def ideal_index_bits(count: int, numel: int) -> float:
    """log2 of the number of subsets of `count` of `numel` positions: the lower bound of the mean size of any coding."""
    log_choose = math.lgamma(numel + 1) - math.lgamma(count + 1) - math.lgamma(numel - count + 1)
    return log_choose / math.log(2)


@lru_cache  # the same for a layer at every step
def model_index_bits(count: int, numel: int) -> float:
    """The formula of papers: the least of explicit positions, bitmap, and Golomb gaps with log2(d/k) + 1.5 bits."""
    if count == 0:
        return 0.0
    return min(count * width_of(numel), numel, count * (math.log2(numel / count) + 1.5))
