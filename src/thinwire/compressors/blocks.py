"""Blocks of quantizers: each has a scale of its own, so that an outlier spoils one block only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..core import Capability, CompositionError, Key, TensorSpec
from ..kernels import as_blocks, block_peaks, distinct_positions

__all__ = ["QUANTIZER", "as_blocks", "count_blocks", "check_block", "estimate_errors_by_blocks"]

QUANTIZER = frozenset(
    {Capability.EXPECTS_BYTES, Capability.FUSES_RESIDUAL, Capability.DECODES_MEAN, Capability.ESTIMATES_ERRORS}
)  # capabilities of quantizers with one scale per block
SAMPLE_NUMEL = 1 << 16  # values that give the error of a layer within about a percent


def check_block(part: str, block: int) -> None:
    """Raise CompositionError unless the block length is at least 1."""
    if block < 1:
        raise CompositionError(f"{part}: block must be at least 1, got {block}; 512 is usual")


def count_blocks(numel: int, block: int) -> int:
    """Return the number of blocks of `numel` values; the last may be shorter."""
    return -(-numel // block)


def estimate_errors_by_blocks(
    tensor: Tensor, block: int, options: Sequence[Any], key: Key, exact: bool
) -> Sequence[float | None]:
    """Estimate the error norm of quantizers with this block length from a random sample of blocks.

    The sample is scaled up by the squared peaks of the blocks, since some have thousands of times the energy of others.

    Returns:
        One error per option. None where the option must be tried out instead: it is None, the tensor is small, or
        `exact` is set.
    """
    count = tensor.numel() // block
    num_sampled = max(1, SAMPLE_NUMEL // block)
    if exact or count < 2 * num_sampled:
        return [None] * len(options)
    flat = tensor.flatten()
    sampled = distinct_positions(key, num_sampled, count, flat.device)
    peaks = block_peaks(flat.float(), block).double().square()
    sampled_energy = float(peaks[sampled].sum())
    if not 0 < sampled_energy < math.inf:
        return [None] * len(options)
    scale = math.sqrt(float(peaks.sum()) / sampled_energy)
    sample = flat[: count * block].view(count, block)[sampled].flatten().float()
    spec = TensorSpec("", tuple(sample.shape), torch.float32, sample.device)

    def error(option: Any) -> float:
        lost = sample - option.decode(option.encode(sample, key), spec, key)
        return scale * float(torch.linalg.vector_norm(lost, dtype=torch.float64))

    return [None if option is None else error(option) for option in options]
