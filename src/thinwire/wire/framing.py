"""Framing of a payload as one byte string: the lengths of its parts as varints, then the parts.

The number and types of the parts are known to the receiver.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core import DecodeError, PackedPayload, Payload
from ..kernels import framed_length, pack_parts, unpack_parts
from ..kernels.memory import empty


def lengths_bytes(payload: Payload) -> int:
    """The bytes that framing adds to payload.num_bytes."""
    return framed_length(payload.part_bytes()) - payload.num_bytes


def pack_payload(payload: Payload, into: Tensor | None = None) -> Tensor:
    """The framed payload, in the memory of `into` if that is long enough."""
    payload = payload if payload.is_contiguous else Payload([as_bytes(part) for part in payload.parts])
    table = payload.table()  # addresses: the payload must exist until they have been read
    num_bytes = framed_length(table.lengths)
    has_room = into is not None and into.numel() >= num_bytes
    return pack_parts(table, into[:num_bytes] if has_room else empty(num_bytes, torch.uint8))  # type: ignore[index]


def unpack_payload(blob: Tensor, dtypes: Sequence[torch.dtype]) -> Payload:
    """The payload in `blob`, as views of it where alignment allows.

    Raises:
        DecodeError: the lengths of the parts do not add up to the message, or a part has half a number.
    """
    starts, lengths = unpack_parts(blob, len(dtypes))
    for length, dtype in zip(lengths.tolist(), dtypes, strict=True):
        if length % dtype.itemsize:
            raise DecodeError(f"{length} bytes are not a multiple of the size of {dtype}")
    return PackedPayload(blob, starts, lengths, tuple(dtypes))


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
