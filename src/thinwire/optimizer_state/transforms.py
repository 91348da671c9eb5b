"""Transformations of v before compression and after decoding, the floor of v, and block means: plain functions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

TRANSMITS = ("sqrt", "log", "v")
EPSILON = 1e-8  # Adam's default: a root of v below it changes no update, so the logarithm is linear there


def transform_v(v: Tensor, transmit: str) -> Tensor:
    """Return what is compressed instead of v: √v has half the dynamic range in decades, its logarithm far less.

    Zero stays zero. Signs are kept, since memories may send differences.

    Args:
        v: Second moments, or differences of these.
        transmit: "v", "sqrt" or "log".

    Returns:
        A tensor of the same shape; v itself for "v".
    """
    if transmit == "v":
        return v
    root = v.abs().sqrt_()
    if transmit == "log":
        root = root.div_(EPSILON).log1p_()
    return root.copysign_(v)


def restore_v(u: Tensor, transmit: str) -> Tensor:
    """Undo `transform_v`.

    Args:
        u: What `transform_v` returned, or what a decoder made of it.
        transmit: The same word as for `transform_v`.

    Returns:
        Second moments, up to rounding.
    """
    if transmit == "v":
        return u
    root = u.abs().expm1().mul_(EPSILON) if transmit == "log" else u.abs()
    return root.square_().copysign_(u)


def max_update(beta1: float, beta2: float) -> float:
    """Return the largest possible |m| / √v for any gradients, by the Cauchy-Schwarz inequality with β₁² < β₂.

    m = (1 - β₁) Σ β₁ᵏ g and v = (1 - β₂) Σ β₂ᵏ g² give m² <= v · (1 - β₁)² / ((1 - β₂) (1 - β₁²/β₂)). A mean over ranks
    keeps it, since the square of a mean is at most the mean of squares.

    Args:
        beta1: Adam's β₁.
        beta2: Adam's β₂.

    Returns:
        The bound; infinity where there is none (β₁² >= β₂ or β₂ >= 1).
    """
    ratio = beta1**2 / beta2 if beta2 else math.inf
    return math.inf if ratio >= 1 or beta2 >= 1 else (1 - beta1) / math.sqrt((1 - beta2) * (1 - ratio))


def apply_floor(v: Tensor, m: Tensor, max_ratio: float) -> Tensor:
    """Raise v to at least (m / max_ratio)², so that |m| / √v is at most max_ratio; true states do not change.

    Args:
        v: Second moments after compression.
        m: First moments after compression.
        max_ratio: The bound of `max_update`; infinity: only negative values are raised, to 0.

    Returns:
        The corrected second moments.
    """
    floor = torch.zeros_like(v) if math.isinf(max_ratio) else (m / max_ratio).square_()
    return torch.maximum(v, floor)


def bias_correction_factor(counter: float, target: float, beta: float) -> float:
    """Return the factor from a moment after `counter` steps to one after `target`: Adam's bias correction."""
    return 1.0 if counter == target or counter == 0 else (1 - beta**target) / (1 - beta**counter)


def compute_block_means(values: Tensor, where: Tensor, block: int) -> Tensor:
    """Average the values of each block.

    Args:
        values: Any tensor; blocks run over it in order.
        where: Which values count, of the same shape.
        block: Number of values in a block.

    Returns:
        One mean per block, (blocks,); 0 for a block without a value that counts.
    """
    counted = where.flatten().to(values.dtype)  # sums of floats are several times as fast as those of booleans
    sums = _blocks(values.flatten() * counted, block).sum(dim=1)
    return sums / _blocks(counted, block).sum(dim=1).clamp_(min=1)


def _blocks(flat: Tensor, block: int) -> Tensor:
    spare = -flat.numel() % block
    return (torch.nn.functional.pad(flat, (0, spare)) if spare else flat).view(-1, block)


def expand_block_means(means: Tensor, numel: int, block: int) -> Tensor:
    """Return one number per coordinate: the mean of its block."""
    return means.unsqueeze(1).expand(-1, block).reshape(-1)[:numel]
