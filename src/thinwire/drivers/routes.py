"""Routes of long messages between more than two ranks: one sender for each receiver at a time.

If each rank sends to all others at once, its messages overflow the queue of a thin link, and what is dropped is sent
again. A ring has one message under way on each link. It needs one hop after another, so it pays where a message takes
longer than a hop. For an all-to-all, exchanging with one rank after another was slower than with all at once.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from ..core import World
from .mesh import Buffer, Receiver

LONG_BYTES = 1 << 17  # from this length on, as long as the link is unknown
_MIN_LONG_BYTES = 1 << 14
_MIN_CHUNK_BYTES = 1 << 15  # forwarded at once
_MAX_CHUNKS = 8  # of a message
_HOP_S = 2e-3  # of a busy rank to forward a message
_HOP_ROUND_TRIPS = 4.0  # as many round trips must be shorter than a message
_SAMPLE_BYTES = 1 << 15  # of transfers that tell the rate
_NUM_SAMPLES = 9


class LongMessages:
    """Decides from which length on a message is long, by the transfers so far.

    Ranks may differ: a message is routed as a long one only if all ranks announce theirs as long.

    Args:
        round_trip_s: returns the shortest round trip to the farthest rank.
    """

    def __init__(self, round_trip_s: Callable[[], float]) -> None:
        self._round_trip_s = round_trip_s
        self._rates: deque[float] = deque(maxlen=_NUM_SAMPLES)  # bytes per second
        self._num_transfers, self._threshold = 0, LONG_BYTES

    def add_transfer(self, num_bytes: int, seconds: float) -> None:
        """Learn from a transfer of so many bytes, sent or received."""
        if num_bytes < _SAMPLE_BYTES or seconds <= 0:
            return
        self._rates.append(num_bytes / seconds)
        self._num_transfers += 1
        if self._num_transfers % _NUM_SAMPLES == 0:  # not each time, which would cost more than a short message
            hop_s = max(_HOP_S, _HOP_ROUND_TRIPS * self._round_trip_s())
            self._threshold = max(_MIN_LONG_BYTES, min(LONG_BYTES, round(statistics.median(self._rates) * hop_s)))

    def is_long(self, num_bytes: int) -> bool:
        """Whether this rank announces a message as long."""
        return num_bytes >= self._threshold


def ring_route(world: World, blobs: Sequence[Buffer]) -> tuple[dict[int, list[Buffer]], dict[int, Receiver]]:
    """What a rank sends and receives so that all ranks get all blobs, which have equal lengths, around a ring.

    A rank forwards each chunk as soon as it has it.
    """
    rank, size = world
    queue = [blobs[rank]]

    def forward() -> Receiver:
        for hop in range(1, size):
            for chunk in cut_chunks(blobs[(rank - hop) % size]):
                yield chunk
                if hop < size - 1:
                    queue.append(chunk)

    return {(rank + 1) % size: queue}, {(rank - 1) % size: forward()}


def cut_chunks(blob: Buffer) -> Iterator[Buffer]:
    """Pieces of a message that are forwarded one by one."""
    length = max(_MIN_CHUNK_BYTES, -(-blob.nbytes // _MAX_CHUNKS))
    for start in range(0, blob.nbytes, length):
        yield blob[start : start + length]
