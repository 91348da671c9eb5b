"""Optimizers of the replicas: torch's SGD and AdamW, and cautious AdamW (Liang et al., 2024)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..configuration.config import OptimizerConfig


class CautiousAdamW(torch.optim.AdamW):
    """Cautious AdamW (Liang et al., 2024): keep the components of the update that oppose the gradient in sign.

    The kept components are divided by the fraction kept, at least 1/1000. Weight decay is AdamW's. Used by
    Khafizov, 2025.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        before = [[p.clone() for p in group["params"]] for group in self.param_groups]
        super().step()
        for group, olds in zip(self.param_groups, before, strict=True):
            for parameter, old in zip(group["params"], olds, strict=True):
                if parameter.grad is None:
                    continue
                kept = old * (1 - group["lr"] * group["weight_decay"])
                change = parameter - kept
                agrees = (change * parameter.grad < 0).to(change.dtype)
                parameter.copy_(kept + change * agrees / agrees.mean().clamp(min=1e-3))


def make_optimizer(settings: OptimizerConfig, parameters: Sequence[Tensor], lr: float) -> torch.optim.Optimizer:
    if settings.name == "sgd":
        return torch.optim.SGD(list(parameters), lr=lr, momentum=settings.momentum, weight_decay=settings.weight_decay)
    kind = CautiousAdamW if settings.name == "cadamw" else torch.optim.AdamW
    return kind(list(parameters), lr=lr, betas=settings.betas, weight_decay=settings.weight_decay)


def learning_rate_at(step: int, steps: int, lr: float, schedule: str, warmup_steps: int) -> float:
    """The learning rate of a step: linear warm-up, then constant or cosine decay to zero."""
    if step < warmup_steps:
        return lr * (step + 1) / warmup_steps
    if schedule == "constant":
        return lr
    progress = (step - warmup_steps) / max(1, steps - warmup_steps)
    return lr * 0.5 * (1 + math.cos(math.pi * progress))
