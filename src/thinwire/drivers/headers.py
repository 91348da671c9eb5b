"""The few bytes every rank shows every other before a collective: what it is about to do, at which step, how long.

They turn a disagreement into an error instead of a hang, and tell how long a message of varying length will be.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..core import AllReduce, AllToAll, Broadcast, DecodeError, Request, Swap, World, describe, payload_for
from ..core.requests import tree_children
from ..wire import lengths_bytes

_FORM = struct.Struct("<IIQ")
HEADER_BYTES = _FORM.size
_MOST_BYTES = 1 << 26  # a message may be so long, and eight times our own or what the request expects, to be believed


class Header(NamedTuple):
    signature: int  # of the request's description: equal on all ranks that agree
    step: int
    nbytes: int  # of the framed payload that follows; 0 for an all-reduce, whose size is part of the description

    def pack(self) -> bytes:
        return _FORM.pack(*self)

    @classmethod
    def unpack(cls, data: bytes) -> Header:
        return cls(*_FORM.unpack(data))


def headers_of(request: Request, size: int) -> list[Header]:
    """One for each rank: they differ only in the length of what will follow."""
    signature, step = zlib.crc32(describe(request).encode()), request.step & 0xFFFFFFFF
    if not isinstance(request, AllToAll | Swap):  # the same for all
        return [Header(signature, step, framed_bytes(request, 0))] * size
    return [Header(signature, step, framed_bytes(request, to)) for to in range(size)]


def check_lengths(headers: Mapping[int, Header], own: int, request: Request) -> None:
    """No message is believed to be much longer than our own longest, or than what the request expects.

    Memory is taken for it only after this. Our own says little where a rank may send next to nothing (a threshold, a
    gradient of zeros, a form); what is expected then follows from the layers.
    """
    expected = 0 if isinstance(request, AllReduce) else request.expects
    longest = _MOST_BYTES + 8 * max(own, expected)
    for rank, header in headers.items():
        if header.nbytes > longest:
            raise DecodeError(
                f"step {request.step}: rank {rank} announces {header.nbytes} B for {describe(request)}, at most "
                f"{longest} B are taken; a program that sends so much must say it in the request's `expects`"
            )


def framed_bytes(request: Request, to: int) -> int:
    if isinstance(request, AllReduce):
        return 0
    payload = payload_for(request, to)
    return payload.nbytes + lengths_bytes(payload)


def header_bytes(requests: Sequence[Request], world: World) -> tuple[int, int]:
    """Bytes of headers and lengths that a rank sends and receives for one collective, by formula."""
    rank, size = world
    if size == 1:
        return 0, 0
    request, fixed = requests[rank], HEADER_BYTES * (size - 1)
    if isinstance(request, AllReduce):
        return fixed, fixed
    if isinstance(request, Swap):  # partners only, each with a header of its own
        leaving = [lengths_bytes(payload) for _, payload in request.outgoing]
        coming = [requests[source] for source in request.sources]
        arriving = [lengths_bytes(payload_for(r, rank)) for r in coming if isinstance(r, Swap)]
        return HEADER_BYTES * len(leaving) + sum(leaving), HEADER_BYTES * len(arriving) + sum(arriving)
    lengths = [lengths_bytes(payload_for(r, rank)) for r in requests if not isinstance(r, AllReduce)]
    if isinstance(request, Broadcast):
        root = request.root
        passed_on = lengths[root] * len(tree_children(rank, size, root))
        return fixed + passed_on, fixed + (0 if rank == root else lengths[root])
    outgoing = [lengths_bytes(payload_for(request, to)) for to in range(size)]
    return fixed + sum(outgoing) - outgoing[rank], fixed + sum(lengths) - lengths[rank]
