"""Tensors cut into blocks that have a scale of their own, so that one large number does not drown all others."""

from __future__ import annotations

from ..core import CompositionError
from ..kernels import as_blocks

__all__ = ["as_blocks", "block_count", "check_block"]


def check_block(part: str, block: int) -> None:
    if block < 1:
        raise CompositionError(f"{part}: block must be at least 1, got {block}; 512 is usual")


def block_count(numel: int, block: int) -> int:
    return -(-numel // block)
