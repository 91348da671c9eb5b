"""Bytes that a rank sends to average sparse tensors, by formula, for every aggregator."""

from __future__ import annotations

import math
from typing import NamedTuple

from thinwire.aggregators.sparse_index import INDEXES
from thinwire.core import CompositionError
from thinwire.kernels import bloom_form, cells_for
from thinwire.wire import expected_index_bytes, packed_bytes


class TrafficComparison(NamedTuple):
    """One rank's bytes by aggregator, without headers."""

    num_bytes: dict[str, float]
    union: int  # coordinates that are not zero on some rank
    cheapest: str
    costlier: tuple[str, ...]  # aggregators that send more than the sketch


def compare_traffic(
    density: float,
    workers: int,
    overlap: float | str = "independent",
    numel: int = 1 << 20,
    index: str = "bitmap",
    false_positives: float = 0.001,
) -> TrafficComparison:
    """Return the bytes of workers that keep a share `density` of `numel` float32 values each.

    overlap: 1, they keep the same coordinates; 0, no two keep one in common (as far as there are enough); between, the
    union lies between; "independent", each draws its own. All ways but two_hop give the same average, which keeps no
    more than the density.
    """
    _check(density, workers, overlap, index)
    count = math.ceil(density * numel)
    union = union_size(count, workers, overlap, numel)
    marks, places = _index(index, false_positives, count, union, workers, numel)
    cells = cells_for(places)
    shared = 2 * (workers - 1) / workers  # of an all-reduced tensor, this much leaves each rank
    piece = _payload(count / workers, numel / workers)
    num_bytes = {
        "dense": shared * 4 * numel,
        "gather": (workers - 1) * _payload(count, numel),
        "two_hop": 2 * (workers - 1) * piece,
        "union": shared * (marks + 4 * places),
        "sketch": shared * (marks + 4 * (cells if cells < numel else places)),
    }
    costlier = tuple(name for name, cost in num_bytes.items() if cost > num_bytes["sketch"])
    return TrafficComparison(num_bytes, union, min(num_bytes, key=num_bytes.__getitem__), costlier)


def union_size(count: int, workers: int, overlap: float | str, numel: int) -> int:
    """Return the number of coordinates that at least one worker keeps, of `count` each."""
    if isinstance(overlap, str):
        return round(numel * -math.expm1(workers * math.log1p(-count / numel))) if count < numel else numel
    apart = min(numel, workers * count)
    return round(count + (1 - overlap) * (apart - count))


def _index(index: str, false_positives: float, count: int, union: int, workers: int, numel: int) -> tuple[int, int]:
    """Return the bytes of the index and the coordinates it marks; a Bloom filter marks some zeros, too."""
    bitmap = packed_bytes(numel, 1)
    num_bytes, hashes = bloom_form(min(numel, workers * count), false_positives)
    if index == "bitmap" or num_bytes >= bitmap:
        return bitmap, union
    full = -math.expm1(-hashes * union / (8 * num_bytes))
    return num_bytes, round(union + full**hashes * (numel - union))


def _payload(count: float, numel: float) -> float:
    """Return the bytes of positions in their cheapest coding, and of values."""
    return expected_index_bytes(math.ceil(count), math.ceil(numel)) + 4 * count


def _check(density: float, workers: int, overlap: float | str, index: str) -> None:
    if not 0 < density <= 1:
        raise CompositionError(
            f"compare_traffic: density must be in (0, 1], got {density}; 0.01 keeps one in a hundred"
        )
    if workers < 1:
        raise CompositionError(f"compare_traffic: workers must be at least 1, got {workers}")
    if overlap != "independent" and (isinstance(overlap, str) or not 0 <= overlap <= 1):
        raise CompositionError(f'compare_traffic: overlap must be 0 to 1 or "independent", got {overlap!r}')
    if index not in INDEXES:
        raise CompositionError(f"compare_traffic: index must be one of {', '.join(INDEXES)}, got {index!r}")
