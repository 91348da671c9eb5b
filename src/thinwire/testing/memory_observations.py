"""Observed capabilities of memories and other wrappers, over several steps. None: it cannot be observed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..aggregators import Dense
from ..core import Capability, has
from .probes import gaussian
from .variants import inside_has, is_leaf, make_sparse, replace_leaves
from .worlds import run_steps


def corrects_error(part: Any) -> bool | None:
    """With Top-k inside and the same tensor at every step, every coordinate is sent at some step."""
    made = make_sparse(part, 0.5)
    if made is None:
        return None
    tensors = [0.05 * _draw_even(16, rank) for rank in range(2)]  # small, so that they are not clipped
    outs = run_steps(made, [tensors] * 64)  # a schedule may end at one coordinate a step
    most = [torch.stack([step[rank].sent.abs() for step in outs]).amax(0) for rank in range(2)]
    return all(bool((m >= 0.9 * x.abs()).all()) for m, x in zip(most, tensors, strict=True))


def keeps_residual(part: Any) -> bool | None:
    """After one tensor, a zero tensor: something is sent where nothing was sent before."""
    made = make_sparse(part, 0.25)
    if made is None or any(
        inside_has(part, each) for each in (Capability.KEEPS_RESIDUAL, Capability.SENDS_DIFFERENCES)
    ):
        return None
    first, second = run_steps(made, [[_draw_even(16, rank) for rank in range(2)], [torch.zeros(16)] * 2])
    return any(bool(((a.sent == 0) & (b.sent != 0)).any()) for a, b in zip(first, second, strict=True))


def sends_differences(part: Any) -> bool | None:
    """With Top-k inside and the same tensor at every step, the last step gives the whole tensor."""
    made = make_sparse(part, 0.5)
    hidden = inside_has(part, Capability.SENDS_DIFFERENCES) or has(part, Capability.TRACKS_PEER_COPIES)
    if made is None or hidden:
        return None
    tensors = [_draw_even(16, rank) for rank in range(2)]
    last = run_steps(made, [tensors] * 8)[-1]
    return all(torch.allclose(out.sent, x, rtol=1e-3) for out, x in zip(last, tensors, strict=True))


def accepts_moment_pairs(part: Any) -> bool | None:
    """Around an exact average it gives that average at every step; around Top-k it gives no more in total."""
    if is_leaf(part) or has(part, Capability.FLATTENS_LAYERS):
        return False
    made, lossy = replace_leaves(part, Dense()), make_sparse(part, 0.25)
    if made is None or lossy is None or inside_has(part, Capability.SENDS_DIFFERENCES):
        return None
    if has(part, Capability.HAS_MENU) and part.controller is not None:
        return None  # a controller would observe pairs
    tensors = [gaussian(2, 6, 4, seed=rank) for rank in range(2)]
    mean = torch.stack(tensors).mean(0)
    exact = all(torch.allclose(out.value, mean, atol=1e-5) for step in run_steps(made, [tensors] * 3) for out in step)
    total = torch.stack([step[0].sent for step in run_steps(lossy, [tensors] * 12)]).sum(0)
    return exact and bool((total.abs() <= 12.5 * tensors[0].abs()).all())


def _draw_even(numel: int, seed: int) -> Tensor:
    """Numbers of both signs between 0.5 and 1.5 in size."""
    x = gaussian(numel, seed=seed)
    return x.sign() * (0.5 + torch.rand(numel, generator=torch.Generator().manual_seed(seed)))


MEMORY_OBSERVATIONS = {
    Capability.CORRECTS_ERROR: corrects_error,
    Capability.KEEPS_RESIDUAL: keeps_residual,
    Capability.SENDS_DIFFERENCES: sends_differences,
    Capability.ACCEPTS_MOMENT_PAIRS: accepts_moment_pairs,
}
