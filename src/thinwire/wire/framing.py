"""A payload as one run of bytes: the lengths of its parts, then the parts. Number and types of parts are agreed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core import DecodeError, Payload, nbytes_of
from .varint import read_varint, varint


def lengths_bytes(payload: Payload) -> int:
    """What framing adds to payload.nbytes."""
    return sum(len(varint(nbytes_of(part))) for part in payload.parts)


def pack_payload(payload: Payload) -> Tensor:
    lengths = b"".join(varint(nbytes_of(part)) for part in payload.parts)
    return torch.cat([torch.tensor(list(lengths), dtype=torch.uint8), *map(as_bytes, payload.parts)])


def unpack_payload(blob: Tensor, dtypes: Sequence[torch.dtype]) -> Payload:
    """Parts as views of `blob` where alignment allows; lengths that do not add up are a DecodeError."""
    head = bytes(blob[: 9 * len(dtypes)].tolist())
    lengths, at = [], 0
    for _ in dtypes:
        length, at = read_varint(head, at)
        lengths.append(length)
    if at + sum(lengths) != blob.numel():
        raise DecodeError(f"a message of {blob.numel()} bytes announces {at} + {sum(lengths)} bytes")
    parts = []
    for dtype, length in zip(dtypes, lengths, strict=True):
        parts.append(from_bytes(blob[at : at + length], dtype))
        at += length
    return Payload(tuple(parts))


def as_bytes(tensor: Tensor) -> Tensor:
    """The tensor's memory as a vector of bytes, on the CPU."""
    flat = tensor.detach().to("cpu").flatten()
    if flat.stride() != (1,):  # `contiguous` lets a single element keep a long stride
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)


def from_bytes(data: Tensor, dtype: torch.dtype) -> Tensor:
    if data.numel() % dtype.itemsize:
        raise DecodeError(f"{data.numel()} bytes are no whole number of {dtype}")
    aligned = data if data.storage_offset() % dtype.itemsize == 0 else data.clone()
    return aligned.view(dtype)
