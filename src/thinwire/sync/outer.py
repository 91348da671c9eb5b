"""What is done with the averaged delta: plain functions of (anchor, delta, momentum), layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ..core import CompositionError


@runtime_checkable
class Outer(Protocol):
    """An optimizer whose gradient is a delta: anchor - weights, averaged. Memory is returned, never hidden."""

    def init(self, anchor: Tensor) -> Tensor:
        """The momentum to begin with; empty if there is none."""
        ...

    def step(self, anchor: Tensor, delta: Tensor, momentum: Tensor) -> tuple[Tensor, Tensor]:
        """The next anchor and the next momentum."""
        ...


@dataclass(frozen=True)
class Average:
    """Take the average itself: anchor - delta. Local SGD."""

    def init(self, anchor: Tensor) -> Tensor:
        return torch.zeros(0, dtype=anchor.dtype, device=anchor.device)

    def step(self, anchor: Tensor, delta: Tensor, momentum: Tensor) -> tuple[Tensor, Tensor]:
        return anchor - delta, momentum


@dataclass(frozen=True)
class OuterSGD:
    """m = momentum m + delta; anchor - lr m. With lr=1 and no momentum it is the average (SlowMo, FedAvgM)."""

    lr: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        _check("sgd", self.lr, self.momentum)

    def init(self, anchor: Tensor) -> Tensor:
        return torch.zeros_like(anchor) if self.momentum else Average().init(anchor)

    def step(self, anchor: Tensor, delta: Tensor, momentum: Tensor) -> tuple[Tensor, Tensor]:
        if not self.momentum:
            return anchor - self.lr * delta, momentum
        velocity = self.momentum * momentum + delta
        return anchor - self.lr * velocity, velocity


@dataclass(frozen=True)
class Nesterov:
    """m = momentum m + delta; anchor - lr (delta + momentum m): DiLoCo's outer optimizer (Douillard et al., 2023)."""

    lr: float = 0.7
    momentum: float = 0.9

    def __post_init__(self) -> None:
        _check("nesterov", self.lr, self.momentum)

    def init(self, anchor: Tensor) -> Tensor:
        return torch.zeros_like(anchor)

    def step(self, anchor: Tensor, delta: Tensor, momentum: Tensor) -> tuple[Tensor, Tensor]:
        velocity = self.momentum * momentum + delta
        return anchor - self.lr * (delta + self.momentum * velocity), velocity


def _check(part: str, lr: float, momentum: float) -> None:
    if not 0 < lr < float("inf"):
        raise CompositionError(f"{part}: lr must be positive, got {lr}; 1 takes the whole average")
    if not 0 <= momentum < 1:
        raise CompositionError(f"{part}: momentum must be in [0, 1), got {momentum}; DiLoCo has 0.9")
