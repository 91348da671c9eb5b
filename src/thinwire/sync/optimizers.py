"""What a server does with an average: optimizers as plain functions whose state goes in and comes out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ..core import CompositionError, all_finite


class ServerOptimizer(Protocol):
    """One layer: (weight, gradient, state) -> (weight, state); arguments are not modified."""

    def init(self, weight: Tensor) -> Any: ...

    def step(self, weight: Tensor, gradient: Tensor, state: Any) -> tuple[Tensor, Any]: ...


class Velocity(NamedTuple):
    steps: int
    velocity: Tensor


@dataclass(frozen=True)
class SGD:
    """v <- momentum·v + g; w <- w - lr·v, or w - lr·(g + momentum·v) with `nesterov`.

    FedAvg is SGD(lr=1), FedAvgM is SGD(lr=1, momentum=0.9).
    """

    lr: float = 1.0
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_rates("SGD", self.lr, self.weight_decay, self.momentum)

    def init(self, weight: Tensor) -> Velocity | tuple[()]:
        return Velocity(0, torch.zeros_like(weight)) if self.momentum else ()

    def step(self, weight: Tensor, gradient: Tensor, state: Any) -> tuple[Tensor, Any]:
        if self.weight_decay:
            gradient = gradient + self.weight_decay * weight
        if not self.momentum:
            return weight - self.lr * gradient, state
        velocity = self.momentum * state.velocity + gradient
        ahead = gradient + self.momentum * velocity if self.nesterov else velocity
        return weight - self.lr * ahead, Velocity(state.steps + 1, velocity)


class Moments(NamedTuple):
    steps: int
    first: Tensor
    second: Tensor


@dataclass(frozen=True)
class Adam:
    """m <- b1·m + (1-b1)·g; v <- b2·v + (1-b2)·g²; w <- w - lr·m / (√v + eps), both divided by 1 - b^t if `corrected`.

    FedAdam is Adam(lr=0.01, eps=1e-3, corrected=False): Reddi et al., arXiv 2003.00295.
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0  # taken from the weight, as AdamW does
    corrected: bool = True

    def __post_init__(self) -> None:
        _check_rates("Adam", self.lr, self.weight_decay, *self.betas)
        if not 0 < self.eps < math.inf:
            raise CompositionError(f"Adam: eps must be positive and finite, got {self.eps}; 1e-8 is usual")

    def init(self, weight: Tensor) -> Moments:
        return Moments(0, torch.zeros_like(weight), torch.zeros_like(weight))

    def step(self, weight: Tensor, gradient: Tensor, state: Moments) -> tuple[Tensor, Moments]:
        (b1, b2), steps = self.betas, state.steps + 1
        first = b1 * state.first + (1 - b1) * gradient
        second = b2 * state.second + (1 - b2) * gradient.square()
        c1, c2 = (1 - b1**steps, 1 - b2**steps) if self.corrected else (1.0, 1.0)
        kept = weight * (1 - self.lr * self.weight_decay) if self.weight_decay else weight
        return kept - self.lr * (first / c1) / ((second / c2).sqrt() + self.eps), Moments(steps, first, second)


def stepped(
    optimizer: ServerOptimizer,
    weights: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    states: Mapping[str, Any],
) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """All layers one step on; None if any number of weights or states would not be finite: then take no step."""
    news, memories = {}, {}
    for name, weight in weights.items():
        news[name], memories[name] = optimizer.step(weight, gradients[name].to(weight.dtype), states[name])
        held = [news[name], *(part for part in memories[name] if isinstance(part, Tensor))]
        if not all(map(all_finite, held)):
            return None
    return news, memories


def _check_rates(part: str, lr: float, decay: float, *betas: float) -> None:
    if not 0 < lr < math.inf:
        raise CompositionError(f"{part}: lr must be positive and finite, got {lr}")
    if not 0 <= decay < math.inf:
        raise CompositionError(f"{part}: weight_decay must be at least 0 and finite, got {decay}")
    for beta in betas:
        if not 0 <= beta < 1:
            raise CompositionError(f"{part}: momentum and betas must be in [0, 1), got {beta}; 0.9 is usual")
