"""Fingerprints of tensors: the CRC-32 of their bytes, without temporaries of a tensor's size."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

PIECE_BYTES = 1 << 20  # of what is copied at a time: it stays in the cache until it is read


def fingerprint(tensors: Sequence[Tensor]) -> Tensor:
    """Return one number per tensor: equal for equal bits in the same order, whatever the strides and the device.

    A single flipped bit, or several within 32 bits, always changes it; any other change does but for one case in 2^32.
    """
    return torch.tensor([_checksum(tensor.detach()) for tensor in tensors], dtype=torch.int64)


def _checksum(tensor: Tensor) -> int:
    checksum = 0
    for piece in _pieces(tensor):
        checksum = zlib.crc32(piece.view(-1).view(torch.uint8).numpy().data, checksum)  # releases the GIL
    return checksum


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    """The tensor's elements in row-major order, as contiguous tensors on the CPU; copies have at most PIECE_BYTES."""
    if _is_readable(tensor):
        yield tensor
    elif tensor.nbytes <= PIECE_BYTES:
        yield tensor.cpu().resolve_conj().resolve_neg().contiguous()
    else:
        rows = max(1, PIECE_BYTES * len(tensor) // tensor.nbytes)
        for at in range(0, len(tensor), rows):
            yield from _pieces(tensor[at : at + rows] if rows > 1 else tensor[at])


def _is_readable(tensor: Tensor) -> bool:
    """Whether its bytes lie in the CPU's memory in row-major order."""
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
