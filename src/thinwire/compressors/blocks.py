"""Tensors cut into blocks that have a scale of their own, so that one large number does not drown all others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..core import Capability, CompositionError, Key, TensorSpec
from ..kernels import as_blocks, block_peaks, distinct_positions

__all__ = ["QUANTIZES", "as_blocks", "block_count", "check_block", "errors_of_some_blocks"]

QUANTIZES = frozenset(
    {Capability.EXPECTS_BYTES, Capability.FUSES_RESIDUAL, Capability.DECODES_MEAN, Capability.ESTIMATES_ERRORS}
)  # what quantizers with a scale a block have in common
ENOUGH = 1 << 16  # numbers that tell the error of a layer within a percent or so


def check_block(part: str, block: int) -> None:
    if block < 1:
        raise CompositionError(f"{part}: block must be at least 1, got {block}; 512 is usual")


def block_count(numel: int, block: int) -> int:
    return -(-numel // block)


def errors_of_some_blocks(
    tensor: Tensor, block: int, entries: Sequence[Any], key: Key, exact: bool
) -> Sequence[float | None]:
    """What quantizers with blocks of this length would lose, by some blocks of the tensor, drawn by the key.

    The others are taken to lose as much for their largest magnitude: some have thousands of times the others' energy.
    None for other entries, for all of a small tensor, and if it must be exact: these are tried out.
    """
    count = tensor.numel() // block
    some = max(1, ENOUGH // block)
    if exact or count < 2 * some:
        return [None] * len(entries)
    flat = tensor.flatten()
    drawn = distinct_positions(key, some, count, flat.device)
    peaks = block_peaks(flat.float(), block).double().square()
    shown = float(peaks[drawn].sum())
    if not 0 < shown < math.inf:
        return [None] * len(entries)
    scale = math.sqrt(float(peaks.sum()) / shown)
    sample = flat[: count * block].view(count, block)[drawn].flatten().float()
    spec = TensorSpec("", tuple(sample.shape), torch.float32, sample.device)

    def error(entry: Any) -> float:
        missed = sample - entry.decode(entry.encode(sample, key), spec, key)
        return scale * float(torch.linalg.vector_norm(missed, dtype=torch.float64))

    return [None if entry is None else error(entry) for entry in entries]
