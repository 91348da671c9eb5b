"""Packing of numbers 0, 1, 2: five in a byte (3^5 = 243), 1.6 bits each."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..core import DecodeError

_POWERS = (1, 3, 9, 27, 81)


def trits_bytes(count: int) -> int:
    """The bytes of `count` packed numbers."""
    return -(-count // 5)


def pack_trits(trits: Tensor) -> Tensor:
    """Pack numbers 0, 1, 2."""
    rows = pad(trits.flatten(), (0, -trits.numel() % 5)).view(-1, 5)
    packed = sum(rows[:, i] * power for i, power in enumerate(_POWERS))
    return torch.as_tensor(packed).to(torch.uint8)


def unpack_trits(packed: Tensor, count: int) -> Tensor:
    """The `count` numbers as int32; bytes above 242 and wrong lengths are DecodeErrors."""
    if packed.dtype != torch.uint8 or tuple(packed.shape) != (trits_bytes(count),):
        raise DecodeError(f"{count} trits take {trits_bytes(count)} B, got {tuple(packed.shape)} {packed.dtype}")
    if bool((packed > 242).any()):
        raise DecodeError("a byte of trits must be at most 242")
    words = packed.to(torch.int32)
    trits = torch.stack([words // power % 3 for power in _POWERS], dim=1).flatten()
    if bool(trits[count:].any()):
        raise DecodeError("the padding of the last byte of trits must be zero")
    return trits[:count]
