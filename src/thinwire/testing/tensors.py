"""Random tensors of many distributions, the same for the same arguments."""

from __future__ import annotations

import torch
from torch import Tensor

KINDS = ("gaussian", "heavy tails", "sparse", "constant", "zeros", "one-hot", "one huge", "tiny", "ties")
SHAPES = ((), (0,), (1,), (7,), (33, 5), (4, 3, 5), (1000,))
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def draw(kind: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Draw a finite tensor.

    Args:
        kind: one of KINDS.
        shape: of the tensor.
        dtype: of the tensor.
        seed: of the generator.

    Returns:
        The same tensor for the same arguments.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    flat = x.view(-1)
    if kind == "heavy tails":
        x = x.sign() * x.abs().pow(5)
    elif kind == "sparse":
        x = x * (torch.rand(shape, generator=generator) < 0.1)
    elif kind == "constant":
        x = torch.full(shape, -0.75, dtype=torch.float64)
    elif kind == "zeros":
        x = torch.zeros(shape, dtype=torch.float64)
    elif kind == "one-hot":
        x = torch.zeros(shape, dtype=torch.float64)
        x.view(-1)[flat.numel() // 2 : flat.numel() // 2 + 1] = -2.5
    elif kind == "one huge":
        flat[:1] = 3e38 if dtype not in (torch.float16,) else 6e4
    elif kind == "tiny":
        x = x * (1e-30 if dtype not in (torch.float16,) else 1e-6)
    elif kind == "ties":
        x = x.sign()
    return x.to(dtype)
