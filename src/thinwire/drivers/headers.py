"""The few bytes every rank shows every other before a collective: what it is about to do, at which step, how long.

They turn a disagreement into an error instead of a hang, and tell how long a message of varying length will be.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..core import DecodeError, Payload, Request, World
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
    signature, step = request.signature(), request.step & 0xFFFFFFFF
    payloads = [request.payload_to(rank) for rank in range(size)]
    lengths = {key: framed_bytes(payload) for key, payload in {id(payload): payload for payload in payloads}.items()}
    return [Header(signature, step, lengths[id(payload)]) for payload in payloads]


def check_lengths(headers: Mapping[int, Header], own: int, request: Request) -> None:
    """No message is believed to be much longer than our own longest, or than what the request expects.

    Memory is taken for it only after this. Our own says little where a rank may send next to nothing (a threshold, a
    gradient of zeros, a form); what is expected then follows from the layers.
    """
    longest = _MOST_BYTES + 8 * max(own, request.expects)
    for rank, header in headers.items():
        if header.nbytes > longest:
            raise DecodeError(
                f"step {request.step}: rank {rank} announces {header.nbytes} B for {request.describe()}, at most "
                f"{longest} B are taken; a program that sends so much must say it in the request's `expects`"
            )


def framed_bytes(payload: Payload) -> int:
    return payload.nbytes + lengths_bytes(payload)


def header_bytes(requests: Sequence[Request], world: World) -> tuple[int, int]:
    """Bytes of headers and lengths that a rank sends and receives for one collective, by formula."""
    request = requests[world.rank]
    leaving, arriving = request.headers(world)
    sent, received = request.frames(requests, world)
    return (
        HEADER_BYTES * leaving + sum(map(lengths_bytes, sent)),
        HEADER_BYTES * arriving + sum(map(lengths_bytes, received)),
    )
