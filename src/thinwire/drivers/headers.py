"""The few bytes every rank shows every other before a collective: what it is about to do, at which step, how long.

They turn a disagreement into an error instead of a hang, and tell how long a message of varying length will be.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..core import DecodeError, Payload, Request, World
from ..wire import lengths_bytes

_FORM = struct.Struct("<IIQ")
HEADER_BYTES = _FORM.size
_MOST_BYTES = 1 << 26  # a message may be so long, and eight times our own or what the request expects, to be believed


class Header(NamedTuple):
    signature: int  # of the request's description: equal on all ranks that agree
    step: int
    num_bytes: int  # of the framed payload that follows; 0 for an all-reduce, whose size is part of the description

    def pack(self) -> Tensor:
        return torch.frombuffer(bytearray(_FORM.pack(*self)), dtype=torch.uint8)

    @classmethod
    def unpack(cls, blob: Tensor) -> Header:
        return cls(*_FORM.unpack(blob.numpy().tobytes()))


def headers_of(request: Request, lengths: Sequence[int]) -> list[Header]:
    """One for each rank: they differ only in the length of the framed payload that will follow."""
    signature, step = request.signature(), request.step & 0xFFFFFFFF
    return [Header(signature, step, length) for length in lengths]


def check_lengths(lengths: Mapping[int, int], own: int, request: Request) -> None:
    """No message is believed to be much longer than our own longest, or than what the request expects.

    Memory is taken for it only after this. Our own says little where a rank may send next to nothing (a threshold, a
    gradient of zeros, a form); what is expected then follows from the layers.
    """
    longest = _MOST_BYTES + 8 * max(own, request.expected_bytes)
    for rank, length in lengths.items():
        if length > longest:
            raise DecodeError(
                f"step {request.step}: rank {rank} announces {length} B for {request.describe()}, at most "
                f"{longest} B are taken; a program that sends so much must say it in the request's `expected_bytes`"
            )


def framed_bytes(payload: Payload) -> int:
    return payload.num_bytes + lengths_bytes(payload)


def header_bytes(requests: Sequence[Request], world: World) -> tuple[int, int]:
    """Bytes of headers and lengths that a rank sends and receives for one collective, by formula."""
    request = requests[world.rank]
    leaving, arriving = request.headers(world)
    sent, received = request.frames(requests, world)
    return (
        HEADER_BYTES * leaving + sum(map(lengths_bytes, sent)),
        HEADER_BYTES * arriving + sum(map(lengths_bytes, received)),
    )
