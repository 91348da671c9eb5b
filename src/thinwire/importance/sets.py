"""Where w may lie, and one step of the descent inside: plain functions of a layer's w, or of its logarithm."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..core import saturate

STARTS = ("ones", "centre", "gradient", "square")
_LOWEST = -1e30  # of a logarithm: finite, and its exponential is zero


class Within(Protocol):
    """A set of admissible w. The descent moves a `place`: w itself, or log w, which no step can overflow."""

    def start(self, kind: str, gradient: Tensor) -> Tensor:
        """The w to begin with: all ones, the middle of the set, or in proportion to |g| or g^2."""
        ...

    def enter(self, w: Tensor) -> Tensor:
        """The place of the w in the set that is nearest to any w >= 0, in the sense of the set."""
        ...

    def step(self, place: Tensor, slope: Tensor) -> Tensor:
        """One step down the slope of the trial loss with respect to w."""
        ...

    def weights(self, place: Tensor) -> Tensor:
        """w, which is in the set."""
        ...

    def trial(self, place: Tensor) -> Tensor:
        """What the trial step multiplies the gradient with."""
        ...


@dataclass(frozen=True)
class Simplex:
    """w >= 0, sum 1, as S0 has it: mirror descent with an entropy term; trials take w / max w.

    w <- w exp(-eta (slope + lam log w)), then divided by its sum. The slope is taken as if the trial took w itself: it
    leaves the division by max w out, as S0's code does. An explicit step: eta·lam >= 1 would turn log w around.
    """

    eta: float
    lam: float

    def start(self, kind: str, gradient: Tensor) -> Tensor:
        return _magnitudes(kind, gradient)

    def enter(self, w: Tensor) -> Tensor:
        return _normalised(_log(w))

    def step(self, place: Tensor, slope: Tensor) -> Tensor:
        return _normalised((1 - self.eta * self.lam) * place - self.eta * slope)

    def weights(self, place: Tensor) -> Tensor:
        return place.exp()

    def trial(self, place: Tensor) -> Tensor:
        return (place - place.amax()).exp() if place.numel() else place


@dataclass(frozen=True)
class ScaledSimplex:
    """w >= 0, sum d: the proximal entropic step w <- w^(1/(1 + eta lam)) exp(-eta/(1 + eta lam) slope), scaled to d.

    Nothing overflows however large eta is: for eta·lam >> 1 this is w = d·softmax(-slope / lam), lam a temperature.
    """

    eta: float
    lam: float

    def start(self, kind: str, gradient: Tensor) -> Tensor:
        return _magnitudes(kind, gradient)

    def enter(self, w: Tensor) -> Tensor:
        return _normalised(_log(w), w.numel())

    def step(self, place: Tensor, slope: Tensor) -> Tensor:
        damping = 1 / (1 + self.eta * self.lam)
        return _normalised(damping * place - self.eta * damping * slope, place.numel())

    def weights(self, place: Tensor) -> Tensor:
        return place.exp()

    def trial(self, place: Tensor) -> Tensor:
        return place.exp()


@dataclass(frozen=True)
class Box:
    """low <= w <= high: projected gradient, w <- clip(w - eta slope). The slope carries gamma already."""

    eta: float
    low: float
    high: float

    def start(self, kind: str, gradient: Tensor) -> Tensor:
        if kind == "ones":
            return torch.ones_like(gradient)
        if kind == "centre":
            return torch.full_like(gradient, (self.low + self.high) / 2)
        sizes = _magnitudes(kind, gradient)
        return self.low + (self.high - self.low) * sizes  # the largest gets `high`

    def enter(self, w: Tensor) -> Tensor:
        return w.clamp(self.low, self.high)

    def step(self, place: Tensor, slope: Tensor) -> Tensor:
        return (place - self.eta * slope).clamp(self.low, self.high)

    def weights(self, place: Tensor) -> Tensor:
        return place

    def trial(self, place: Tensor) -> Tensor:
        return place


def _magnitudes(kind: str, gradient: Tensor) -> Tensor:
    """1, |g| or g^2, of a gradient scaled to 1 so that nothing overflows; ones where all is zero."""
    largest = gradient.abs().amax() if gradient.numel() else gradient.sum()
    if kind in ("ones", "centre") or not largest > 0:
        return torch.ones_like(gradient)
    sizes = gradient.abs() / largest
    return sizes.square() if kind == "square" else sizes


def _log(w: Tensor) -> Tensor:
    """Finite: what is zero may grow again."""
    return w.clamp(min=torch.finfo(w.dtype).tiny).log()


def _normalised(logs: Tensor, total: float = 1.0) -> Tensor:
    """Shifted so that the exponentials sum to `total`."""
    logs = saturate(logs)
    logs = logs - (logs.amax() if logs.numel() else 0)  # first, so that the sum is taken of small numbers
    return (logs - logs.flatten().logsumexp(0) + math.log(total or 1)).clamp(min=_LOWEST)
