"""Outer optimizers: a step with an averaged delta as gradient, in local rounds and on servers.

Plain functions of one layer whose state goes in and comes out: a named tuple, a tensor, or tensors and numbers by name.
`torch_optimizers` makes one of any class of torch.optim.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..core import CompositionError, all_finite, flatten_state, restore_state


@runtime_checkable
class Outer(Protocol):
    """One layer: (weight, gradient, state) -> (weight, state); arguments are not modified."""

    def init(self, weight: Tensor) -> Any:
        """The state before the first step; () if there is none."""
        ...

    def step(self, weight: Tensor, gradient: Tensor, state: Any) -> tuple[Tensor, Any]: ...


@dataclass(frozen=True)
class Average:
    """w <- w - g: with an averaged delta, the average of the weights. Local SGD."""

    def init(self, weight: Tensor) -> tuple[()]:
        return ()

    def step(self, weight: Tensor, gradient: Tensor, state: tuple[()]) -> tuple[Tensor, tuple[()]]:
        return weight - gradient, state


class Velocity(NamedTuple):
    steps: int  # so far, for checkpoints of servers; nothing is computed with it
    velocity: Tensor


@dataclass(frozen=True)
class SGD:
    """v <- momentum·v + g; w <- w - lr·v, or w - lr·(g + momentum·v) with `nesterov`.

    SGD(lr=1) is the average (FedAvg); with momentum it is SlowMo, or FedAvgM.
    """

    lr: float = 1.0
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_rates(type(self).__name__.lower(), self.lr, self.weight_decay, self.momentum)

    def init(self, weight: Tensor) -> Velocity | tuple[()]:
        return Velocity(0, torch.zeros_like(weight)) if self.momentum else ()

    def step(self, weight: Tensor, gradient: Tensor, state: Any) -> tuple[Tensor, Any]:
        if self.weight_decay:
            gradient = gradient + self.weight_decay * weight
        if state == ():
            return weight - self.lr * gradient, state
        velocity = self.momentum * state.velocity + gradient
        ahead = gradient + self.momentum * velocity if self.nesterov else velocity
        return weight - self.lr * ahead, Velocity(state.steps + 1, velocity)


@dataclass(frozen=True)
class Nesterov(SGD):
    """SGD with Nesterov's momentum: DiLoCo's outer optimizer (Douillard et al., 2023)."""

    lr: float = 0.7
    momentum: float = 0.9
    nesterov: bool = field(default=True, init=False, repr=False)

    def init(self, weight: Tensor) -> Velocity:
        return Velocity(0, torch.zeros_like(weight))


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
        _check_pair("adam", self.betas)
        _check_rates("adam", self.lr, self.weight_decay, *self.betas)
        if not 0 < self.eps < math.inf:
            raise CompositionError(f"adam: eps must be positive and finite, got {self.eps}; 1e-8 is usual")

    def init(self, weight: Tensor) -> Moments:
        return Moments(0, torch.zeros_like(weight), torch.zeros_like(weight))

    def step(self, weight: Tensor, gradient: Tensor, state: Moments) -> tuple[Tensor, Moments]:
        (b1, b2), steps = self.betas, state.steps + 1
        first = b1 * state.first + (1 - b1) * gradient
        second = b2 * state.second + (1 - b2) * gradient.square()
        c1, c2 = (1 - b1**steps, 1 - b2**steps) if self.corrected else (1.0, 1.0)
        kept = weight * (1 - self.lr * self.weight_decay) if self.weight_decay else weight
        return kept - self.lr * (first / c1) / ((second / c2).sqrt() + self.eps), Moments(steps, first, second)


def step_all(
    optimizer: Outer,
    weights: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    states: Mapping[str, Any],
) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """All layers one step on; None if any number of weights or states would not be finite: then take no step."""
    news, memories = {}, {}
    for name, weight in weights.items():
        news[name], memories[name] = optimizer.step(weight, gradients[name].to(weight.dtype), states[name])
        held = [news[name], *(leaf for leaf in flatten_state(memories[name]).values() if isinstance(leaf, Tensor))]
        if not all(map(all_finite, held)):
            return None
    return news, memories


def restore_outer(optimizer: Outer, weight: Tensor, stored: Mapping[str, Any]) -> Any:
    """The state of one layer that `flatten_state` made `stored` of. A state that grows at its first step is probed."""
    form = optimizer.init(weight)
    if isinstance(form, Mapping) and stored:
        form = optimizer.step(torch.zeros_like(weight), torch.zeros_like(weight), form)[1]
    return restore_state(form, stored)


def store_momentum(state: Any, weight: Tensor) -> Tensor | dict[str, Any]:
    """What checkpoints of local training hold for one layer: a velocity alone (empty if there is none), or by name."""
    if isinstance(state, tuple) and not state:
        return torch.zeros(0, dtype=weight.dtype, device=weight.device)
    if isinstance(state, Velocity):
        return state.velocity
    return state if isinstance(state, Tensor) else flatten_state(state)


def restore_momentum(optimizer: Outer, weight: Tensor, stored: Tensor | Mapping[str, Any]) -> Any:
    """The state of one layer that `store_momentum` made `stored` of."""
    if not isinstance(stored, Tensor):
        return restore_outer(optimizer, weight, stored)
    form, fields = optimizer.init(weight), {"": stored.to(weight.dtype), "velocity": stored.to(weight.dtype)}
    return restore_state(form, {**fields, "steps": 0})


def _check_pair(part: str, betas: Any) -> None:
    numbers = isinstance(betas, tuple) and len(betas) == 2 and all(isinstance(beta, int | float) for beta in betas)
    if not numbers:
        raise CompositionError(f"{part}: betas must be two numbers, got {betas!r}; (0.9, 0.999) is usual")


def _check_rates(part: str, lr: float, decay: float, *betas: float) -> None:
    if not 0 < lr < math.inf:
        raise CompositionError(f"{part}: lr must be positive and finite, got {lr}")
    if not 0 <= decay < math.inf:
        raise CompositionError(f"{part}: weight_decay must be at least 0 and finite, got {decay}")
    for beta in betas:
        if not 0 <= beta < 1:
            raise CompositionError(f"{part}: momentum and betas must be in [0, 1), got {beta}; 0.9 is usual")
