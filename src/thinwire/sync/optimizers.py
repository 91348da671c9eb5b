"""Outer optimizers of local rounds and servers: a step with an averaged delta as the gradient.

FedAvg (McMahan et al., 2017), SlowMo (Wang et al., 2020), DiLoCo's Nesterov momentum (Douillard et al., 2023), FedAdam
(Reddi et al., 2021). They are pure functions of one layer: the state is an argument and a result. `torch_optimizers`
makes one from any class of torch.optim.
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
class OuterOptimizer(Protocol):
    """Steps one layer: (weight, gradient, state) -> (weight, state). Arguments are not modified."""

    def init(self, weight: Tensor) -> Any:
        """The state before the first step; () for none."""
        ...

    def step(self, weight: Tensor, gradient: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The weight and the state after a step."""
        ...


@dataclass(frozen=True)
class Average:
    """w <- w - g: with an averaged delta, the average of the weights. Local SGD (Stich, 2019)."""

    def init(self, weight: Tensor) -> tuple[()]:
        return ()

    def step(self, weight: Tensor, gradient: Tensor, state: tuple[()]) -> tuple[Tensor, tuple[()]]:
        return weight - gradient, state


class MomentumState(NamedTuple):
    """State of SGD with momentum."""

    steps: int  # so far, for checkpoints of servers; nothing is computed with it
    velocity: Tensor


@dataclass(frozen=True)
class SGD:
    """v <- momentum·v + g; w <- w - lr·v, or w - lr·(g + momentum·v) with `nesterov`.

    SGD(lr=1) is the average: FedAvg (McMahan et al., 2017). With momentum it is SlowMo (Wang et al., 2020) or FedAvgM.
    """

    lr: float = 1.0
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_rates(type(self).__name__.lower(), self.lr, self.weight_decay, self.momentum)

    def init(self, weight: Tensor) -> MomentumState | tuple[()]:
        return MomentumState(0, torch.zeros_like(weight)) if self.momentum else ()

    def step(self, weight: Tensor, gradient: Tensor, state: Any) -> tuple[Tensor, Any]:
        if self.weight_decay:
            gradient = gradient + self.weight_decay * weight
        if state == ():
            return weight - self.lr * gradient, state
        velocity = self.momentum * state.velocity + gradient
        ahead = gradient + self.momentum * velocity if self.nesterov else velocity
        return weight - self.lr * ahead, MomentumState(state.steps + 1, velocity)


@dataclass(frozen=True)
class Nesterov(SGD):
    """SGD with Nesterov momentum: the outer optimizer of DiLoCo (Douillard et al., 2023)."""

    lr: float = 0.7
    momentum: float = 0.9
    nesterov: bool = field(default=True, init=False, repr=False)

    def init(self, weight: Tensor) -> MomentumState:
        return MomentumState(0, torch.zeros_like(weight))


class AdamState(NamedTuple):
    """State of Adam."""

    steps: int
    first: Tensor
    second: Tensor


@dataclass(frozen=True)
class Adam:
    """m <- b1·m + (1-b1)·g; v <- b2·v + (1-b2)·g²; w <- w - lr·m / (√v + eps), both divided by 1 - b^t with
    `bias_correction`.

    FedAdam is Adam(lr=0.01, eps=1e-3, bias_correction=False) (Reddi et al., 2021).
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0  # decoupled, as in AdamW
    bias_correction: bool = True

    def __post_init__(self) -> None:
        _check_betas("adam", self.betas)
        _check_rates("adam", self.lr, self.weight_decay, *self.betas)
        if not 0 < self.eps < math.inf:
            raise CompositionError(f"adam: eps must be positive and finite, got {self.eps}; 1e-8 is usual")

    def init(self, weight: Tensor) -> AdamState:
        return AdamState(0, torch.zeros_like(weight), torch.zeros_like(weight))

    def step(self, weight: Tensor, gradient: Tensor, state: AdamState) -> tuple[Tensor, AdamState]:
        (b1, b2), steps = self.betas, state.steps + 1
        first = b1 * state.first + (1 - b1) * gradient
        second = b2 * state.second + (1 - b2) * gradient.square()
        c1, c2 = (1 - b1**steps, 1 - b2**steps) if self.bias_correction else (1.0, 1.0)
        decayed = weight * (1 - self.lr * self.weight_decay) if self.weight_decay else weight
        return decayed - self.lr * (first / c1) / ((second / c2).sqrt() + self.eps), AdamState(steps, first, second)


def step_all(
    optimizer: OuterOptimizer,
    weights: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    states: Mapping[str, Any],
) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Step all layers; None if a weight or a state would not be finite: then no step is to be taken."""
    stepped, new_states = {}, {}
    for name, weight in weights.items():
        stepped[name], new_states[name] = optimizer.step(weight, gradients[name].to(weight.dtype), states[name])
        leaves = [leaf for leaf in flatten_state(new_states[name]).values() if isinstance(leaf, Tensor)]
        if not all(map(all_finite, [stepped[name], *leaves])):
            return None
    return stepped, new_states


def restore_optimizer_state(optimizer: OuterOptimizer, weight: Tensor, stored: Mapping[str, Any]) -> Any:
    """The state of one layer from its stored form, the result of `flatten_state`."""
    template = optimizer.init(weight)
    if isinstance(template, Mapping) and stored:  # torch's optimizers fill their state at the first step
        template = optimizer.step(torch.zeros_like(weight), torch.zeros_like(weight), template)[1]
    return restore_state(template, stored)


def store_momentum(state: Any, weight: Tensor) -> Tensor | dict[str, Any]:
    """The stored form of a layer's state in local training: the velocity alone (empty for none), or fields by name."""
    if isinstance(state, tuple) and not state:
        return torch.zeros(0, dtype=weight.dtype, device=weight.device)
    if isinstance(state, MomentumState):
        return state.velocity
    return state if isinstance(state, Tensor) else flatten_state(state)


def restore_momentum(optimizer: OuterOptimizer, weight: Tensor, stored: Tensor | Mapping[str, Any]) -> Any:
    """The state of one layer from its stored form, the result of `store_momentum`."""
    if not isinstance(stored, Tensor):
        return restore_optimizer_state(optimizer, weight, stored)
    template, fields = optimizer.init(weight), {"": stored.to(weight.dtype), "velocity": stored.to(weight.dtype)}
    return restore_state(template, {**fields, "steps": 0})


def _check_betas(part: str, betas: Any) -> None:
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
