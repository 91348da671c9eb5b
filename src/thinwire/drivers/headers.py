"""Headers of messages between ranks: a checksum of the request, its step, the length of the data that follow.

They turn a disagreement between ranks into an error instead of a hang, and announce the length of a payload of varying
size. A header travels with its data, so that agreement costs no round trip.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..core import DecodeError, Payload, Request, World
from ..wire import lengths_bytes

_FORMAT = struct.Struct("<IIQII")
HEADER_BYTES = _FORMAT.size
_MAX_BYTES = 1 << 26  # a payload may have this much, plus eight times our own or what the request expects


class RequestHeader(NamedTuple):
    """The 24 bytes that announce one request."""

    signature: int  # checksum of the request's description: equal on all ranks that agree
    step: int
    num_bytes: int  # of the data
    checksum: int = 0  # of the data; 0: not computed
    is_detached: int = 0  # 1: the data do not follow this header but come by messages of their own

    def pack(self) -> bytes:
        return _FORMAT.pack(*self)

    @classmethod
    def unpack(cls, data: bytes | bytearray) -> RequestHeader:
        return cls(*_FORMAT.unpack(data))

    def agrees_with(self, other: RequestHeader) -> bool:
        """Whether both announce the same request."""
        return (self.signature, self.step) == (other.signature, other.step)


def make_header(request: Request, num_bytes: int, is_detached: bool = False) -> RequestHeader:
    """The header of a message with so many bytes of data."""
    return RequestHeader(request.signature(), request.step & 0xFFFFFFFF, num_bytes, 0, int(is_detached))


def check_lengths(lengths: Mapping[int, int], own: int, request: Request) -> None:
    """Check announced lengths before memory is allocated for them.

    The limit follows from our own longest payload and from what the request expects. Our own length alone is not
    enough: a rank may send almost nothing (a threshold compressor, a gradient of zeros) where others send much.

    Raises:
        DecodeError: a rank announces more than the limit.
    """
    limit = _MAX_BYTES + 8 * max(own, request.expected_bytes)
    for rank, length in lengths.items():
        if length > limit:
            raise DecodeError(
                f"step {request.step}: rank {rank} announces {length} B for {request.describe()}, at most "
                f"{limit} B are accepted; a program that sends more must set `expected_bytes` of its request"
            )


def framed_bytes(payload: Payload) -> int:
    """Bytes of a payload and of the lengths of its parts."""
    return payload.num_bytes + lengths_bytes(payload)


def header_bytes(requests: Sequence[Request], world: World) -> tuple[int, int]:
    """Bytes of headers and lengths that a rank sends and receives for one collective, by formula."""
    request = requests[world.rank]
    num_sent, num_received = request.headers(world)
    sent, received = request.frames(requests, world)
    return (
        HEADER_BYTES * num_sent + sum(map(lengths_bytes, sent)),
        HEADER_BYTES * num_received + sum(map(lengths_bytes, received)),
    )
