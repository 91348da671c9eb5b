"""A payload as one run of bytes: the lengths of its parts, then the parts. Number and types of parts are agreed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core import DecodeError, Payload
from ..kernels.varint import read_varint, varint, varint_bytes

_LONG = 4096  # parts of so many bytes begin at multiples of 8, so that they need not be copied to be read


def lengths_bytes(payload: Payload) -> int:
    """What framing adds to payload.num_bytes."""
    lengths = [part.nbytes for part in payload.parts]
    _, end = _places(lengths, sum(map(varint_bytes, lengths)))
    return end - payload.num_bytes


def _places(lengths: Sequence[int], at: int) -> tuple[list[int], int]:
    """Where parts begin after a head of `at` bytes, and where the last one ends."""
    starts = []
    for length in lengths:
        at += -at % 8 if length >= _LONG else 0
        starts.append(at)
        at += length
    return starts, at


def pack_payload(payload: Payload, into: Tensor | None = None) -> Tensor:
    """One run of bytes, in the memory of `into` if that is given and long enough."""
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
    """Parts as views of `blob` where alignment allows; lengths that do not add up are a DecodeError."""
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
    """The tensor's memory as a vector of bytes, on the CPU."""
    flat = tensor.detach() if tensor.dim() == 1 and tensor.is_cpu else tensor.detach().to("cpu").flatten()
    if flat.stride() != (1,):  # `contiguous` lets a single element keep a long stride
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat if flat.dtype == torch.uint8 else flat.view(torch.uint8)


def from_bytes(data: Tensor, dtype: torch.dtype) -> Tensor:
    if data.numel() % dtype.itemsize:
        raise DecodeError(f"{data.numel()} bytes are no whole number of {dtype}")
    if dtype == torch.uint8:
        return data
    aligned = data if data.storage_offset() % dtype.itemsize == 0 else data.clone()
    return aligned.view(dtype)
