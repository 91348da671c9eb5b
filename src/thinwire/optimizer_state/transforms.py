"""What of v travels, what comes back, and how small v may be. Plain functions of tensors."""

from __future__ import annotations

import math

import torch
from torch import Tensor

TRANSMITS = ("sqrt", "log", "v")
EPSILON = 1e-8  # Adam's own: a root of v below it changes no update, so the logarithm is a line there


def transformed(v: Tensor, transmit: str) -> Tensor:
    """What is compressed in the place of v: √v spans half as many powers of ten, its logarithm hardly any.

    Zero stays zero. Memories may ask for differences, so signs are kept.
    """
    if transmit == "v":
        return v
    root = v.abs().sqrt_()
    if transmit == "log":
        root = root.div_(EPSILON).log1p_()
    return root.copysign_(v)


def restored(u: Tensor, transmit: str) -> Tensor:
    """v again."""
    if transmit == "v":
        return u
    root = u.abs().expm1().mul_(EPSILON) if transmit == "log" else u.abs()
    return root.square_().copysign_(u)


def largest_update(beta1: float, beta2: float) -> float:
    """The most that |m| / √v can be, whatever the gradients: Cauchy and Schwarz, with β₁² < β₂.

    m = (1 - β₁) Σ β₁ᵏ g and v = (1 - β₂) Σ β₂ᵏ g² give m² <= v · (1 - β₁)² / ((1 - β₂) (1 - β₁²/β₂)). A mean over hosts
    keeps it, since the square of a mean is at most the mean of squares.
    """
    share = beta1**2 / beta2 if beta2 else math.inf
    return math.inf if share >= 1 or beta2 >= 1 else (1 - beta1) / math.sqrt((1 - beta2) * (1 - share))


def floored(v: Tensor, m: Tensor, most: float) -> Tensor:
    """v, but nowhere less than what gives an update m / √v of `most`: true states are left as they are."""
    least = torch.zeros_like(v) if math.isinf(most) else (m / most).square_()
    return torch.maximum(v, least)


def unbiased(counter: float, target: float, beta: float) -> float:
    """The factor that makes a mean over `counter` steps, started at zero, one over `target`: Adam's own correction."""
    return 1.0 if counter == target or counter == 0 else (1 - beta**target) / (1 - beta**counter)


def block_means(values: Tensor, where: Tensor, block: int) -> Tensor:
    """The mean of each block's values at the places `where`; 0 for a block without any."""
    counted = where.flatten().to(values.dtype)  # sums of numbers are several times as fast as those of truths
    sums = _blocks(values.flatten() * counted, block).sum(dim=1)
    return sums / _blocks(counted, block).sum(dim=1).clamp_(min=1)


def _blocks(flat: Tensor, block: int) -> Tensor:
    spare = -flat.numel() % block
    return (torch.nn.functional.pad(flat, (0, spare)) if spare else flat).view(-1, block)


def spread(means: Tensor, numel: int, block: int) -> Tensor:
    """One number a coordinate: its block's."""
    return means.unsqueeze(1).expand(-1, block).reshape(-1)[:numel]
