"""Tensors cut into blocks that have a scale of their own, so that one large number does not drown all others."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import pad

from ..core import CompositionError


def check_block(part: str, block: int) -> None:
    if block < 1:
        raise CompositionError(f"{part}: block must be at least 1, got {block}; 512 is usual")


def as_blocks(flat: Tensor, block: int) -> Tensor:
    """(blocks, width) with the last block filled up with zeros; no wider than the tensor is long."""
    width = max(1, min(block, flat.numel()))
    return pad(flat, (0, -flat.numel() % width)).view(-1, width)


def block_count(numel: int, block: int) -> int:
    return -(-numel // block)
