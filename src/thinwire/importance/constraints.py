"""Constraint sets of the importance w, each with one step of mirror descent or projected gradient inside it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..core import saturate

STARTS = ("ones", "center", "gradient", "gradient_squared")
_MIN_LOG = -1e30  # finite, and its exponential is zero


class ConstraintSet(Protocol):
    """A set of admissible w. The descent works on an `iterate`: w itself, or log w, which no step can overflow."""

    def initial_weights(self, start: str, gradient: Tensor) -> Tensor:
        """Return the w to start from: ones, the center of the set, or in proportion to |g| or g²."""
        ...

    def project(self, w: Tensor) -> Tensor:
        """Return the iterate of the nearest w in the set, for any w >= 0."""
        ...

    def step(self, iterate: Tensor, slope: Tensor) -> Tensor:
        """Return the next iterate. slope: gradient of the trial loss with respect to w."""
        ...

    def weights(self, iterate: Tensor) -> Tensor:
        """Return w, which is in the set."""
        ...

    def trial_weights(self, iterate: Tensor) -> Tensor:
        """Return what the trial step multiplies the gradient with."""
        ...


@dataclass(frozen=True)
class Simplex:
    """w >= 0 with sum 1 (Khafizov & Beznosikov, 2024): mirror descent with an entropy term; trials use w / max w.

    w <- w exp(-eta (slope + lam log w)), then divided by its sum. As in the published code, the slope ignores the
    division by max w. The step is explicit: eta·lam >= 1 would reverse the order of the w.
    """

    eta: float
    lam: float

    def initial_weights(self, start: str, gradient: Tensor) -> Tensor:
        return _magnitudes(start, gradient)

    def project(self, w: Tensor) -> Tensor:
        return _normalize(_log(w))

    def step(self, iterate: Tensor, slope: Tensor) -> Tensor:
        return _normalize((1 - self.eta * self.lam) * iterate - self.eta * slope)

    def weights(self, iterate: Tensor) -> Tensor:
        return iterate.exp()

    def trial_weights(self, iterate: Tensor) -> Tensor:
        return (iterate - iterate.amax()).exp() if iterate.numel() else iterate


@dataclass(frozen=True)
class ScaledSimplex:
    """w >= 0 with sum d (ImpK_s, Khafizov, 2025): w <- w^(1/(1 + eta lam)) exp(-eta/(1 + eta lam) slope), scaled to d.

    A proximal entropic step: nothing overflows however large eta is. For eta·lam >> 1 it is
    w = d·softmax(-slope / lam), with lam as the temperature.
    """

    eta: float
    lam: float

    def initial_weights(self, start: str, gradient: Tensor) -> Tensor:
        return _magnitudes(start, gradient)

    def project(self, w: Tensor) -> Tensor:
        return _normalize(_log(w), w.numel())

    def step(self, iterate: Tensor, slope: Tensor) -> Tensor:
        damping = 1 / (1 + self.eta * self.lam)
        return _normalize(damping * iterate - self.eta * damping * slope, iterate.numel())

    def weights(self, iterate: Tensor) -> Tensor:
        return iterate.exp()

    def trial_weights(self, iterate: Tensor) -> Tensor:
        return iterate.exp()


@dataclass(frozen=True)
class Box:
    """low <= w <= high (ImpK_c, Khafizov, 2025): projected gradient, w <- clip(w - eta slope)."""

    eta: float
    low: float
    high: float

    def initial_weights(self, start: str, gradient: Tensor) -> Tensor:
        if start == "ones":
            return torch.ones_like(gradient)
        if start == "center":
            return torch.full_like(gradient, (self.low + self.high) / 2)
        return self.low + (self.high - self.low) * _magnitudes(start, gradient)  # the largest gets `high`

    def project(self, w: Tensor) -> Tensor:
        return w.clamp(self.low, self.high)

    def step(self, iterate: Tensor, slope: Tensor) -> Tensor:
        return (iterate - self.eta * slope).clamp(self.low, self.high)

    def weights(self, iterate: Tensor) -> Tensor:
        return iterate

    def trial_weights(self, iterate: Tensor) -> Tensor:
        return iterate


def _magnitudes(start: str, gradient: Tensor) -> Tensor:
    """Return 1, |g| or g² of a gradient scaled to 1, so that nothing overflows; ones where all is zero."""
    largest = gradient.abs().amax() if gradient.numel() else gradient.sum()
    if start in ("ones", "center") or not largest > 0:
        return torch.ones_like(gradient)
    magnitudes = gradient.abs() / largest
    return magnitudes.square() if start == "gradient_squared" else magnitudes


def _log(w: Tensor) -> Tensor:
    """Return log w, finite also where w is zero, so that it may grow again."""
    return w.clamp(min=torch.finfo(w.dtype).tiny).log()


def _normalize(logs: Tensor, total: float = 1.0) -> Tensor:
    """Shift logarithms so that their exponentials sum to `total`."""
    logs = saturate(logs)
    logs = logs - (logs.amax() if logs.numel() else 0)  # first, so that the exponentials are at most 1
    return (logs - logs.flatten().logsumexp(0) + math.log(total or 1)).clamp(min=_MIN_LOG)
