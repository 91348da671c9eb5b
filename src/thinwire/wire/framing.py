"""Framing of a payload as one byte string: the lengths of its parts as varints, then the parts.

The number and types of the parts are known to the receiver.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core import DecodeError, Payload
from ..kernels.varint import read_varint, varint, varint_bytes

_ALIGN_FROM = 4096  # parts of at least this many bytes begin at multiples of 8, so that they are read without a copy


def lengths_bytes(payload: Payload) -> int:
    """The bytes that framing adds to payload.num_bytes."""
    lengths = [part.nbytes for part in payload.parts]
    _, end = _places(lengths, sum(map(varint_bytes, lengths)))
    return end - payload.num_bytes


def _places(lengths: Sequence[int], at: int) -> tuple[list[int], int]:
    """The start of each part after a head of `at` bytes, and the end of the last one."""
    starts = []
    for length in lengths:
        at += -at % 8 if length >= _ALIGN_FROM else 0
        starts.append(at)
        at += length
    return starts, at


def pack_payload(payload: Payload, into: Tensor | None = None) -> Tensor:
    """The framed payload, in the memory of `into` if that is long enough."""
    lengths = [part.nbytes for part in payload.parts]
    head = b"".join(map(varint, lengths))
    starts, end = _places(lengths, len(head))
    blob = torch.empty(end, dtype=torch.uint8) if into is None or into.numel() < end else into[:end]
    pieces, at = [torch.frombuffer(bytearray(head), dtype=torch.uint8)] if head else [], len(head)
    for part, start, length in zip(payload.parts, starts, lengths, strict=True):
        if start > at:
            pieces.append(torch.zeros(start - at, dtype=torch.uint8))
        pieces.append(as_bytes(part))
        at = start + length
    return torch.cat(pieces, out=blob) if pieces else blob


def unpack_payload(blob: Tensor, dtypes: Sequence[torch.dtype]) -> Payload:
    """The payload in `blob`, as views of it where alignment allows.

    Raises:
        DecodeError: the lengths of the parts do not add up to the message.
    """
    head = blob[: 9 * len(dtypes)].numpy().tobytes()
    lengths, at = [], 0
    for _ in dtypes:
        length, at = read_varint(head, at)
        lengths.append(length)
    starts, end = _places(lengths, at)
    if end != blob.numel():
        raise DecodeError(f"a message of {blob.numel()} bytes announces {end - sum(lengths)} + {sum(lengths)} bytes")
    triples = zip(starts, lengths, dtypes, strict=True)
    return Payload(tuple([from_bytes(blob[start : start + length], dtype) for start, length, dtype in triples]))


def as_bytes(tensor: Tensor) -> Tensor:
    """The tensor's data as a vector of bytes on the CPU."""
    flat = tensor.detach() if tensor.dim() == 1 and tensor.is_cpu else tensor.detach().to("cpu").flatten()
    if flat.stride() != (1,):  # `contiguous` lets a single element keep a long stride
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat if flat.dtype == torch.uint8 else flat.view(torch.uint8)


def from_bytes(data: Tensor, dtype: torch.dtype) -> Tensor:
    """A vector of this type, out of its bytes."""
    if data.numel() % dtype.itemsize:
        raise DecodeError(f"{data.numel()} bytes are not a multiple of the size of {dtype}")
    if dtype == torch.uint8:
        return data
    aligned = data if data.storage_offset() % dtype.itemsize == 0 else data.clone()
    return aligned.view(dtype)
