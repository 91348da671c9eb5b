"""Numbers that are hard for kernels, and comparing to the last bit."""

from __future__ import annotations

import torch
from torch import Tensor

from helpers.cases import draw


def drawn(kind: str, size: int, seed: int = 0) -> Tensor:
    """As `draw`; of the kind "limits", numbers at the ends of float32's range."""
    if kind != "limits":
        return draw(kind, (size,), seed=seed)
    some = torch.tensor(
        [0.0, -0.0, 3.4028235e38, -3.4028235e38, 1e-45, -1e-45, 1.1754944e-38, -1.5, 65536.0, 2.0**-110]
    )
    return some.repeat(size // 10 + 1)[:size].roll(seed)


def alike(ours: Tensor | tuple[Tensor, ...], theirs: Tensor | tuple[Tensor, ...]) -> bool:
    """The same bits, signs of zeros included."""
    if isinstance(ours, tuple) or isinstance(theirs, tuple):
        assert isinstance(ours, tuple) and isinstance(theirs, tuple)
        return len(ours) == len(theirs) and all(map(alike, ours, theirs))
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return False
    whole = {torch.float32: torch.int32, torch.float64: torch.int64}.get(theirs.dtype, theirs.dtype)
    return torch.equal(ours.view(whole), theirs.view(whole))
