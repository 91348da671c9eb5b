"""Finding w: the importance that makes one trial step, x - gamma w g, go down furthest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import (
    AllReduce,
    Broadcast,
    CompositionError,
    Payload,
    Program,
    World,
    all_finite,
    fuse,
    payload_labels,
    reduce_labels,
)
from .objectives import Objective, Point
from .sets import STARTS, Box, ScaledSimplex, Simplex, Within

SETS = ("simplex", "scaled_simplex", "box")
KIND = "importance"  # what the meter calls the bytes of a shared solution


class Solution(NamedTuple):
    """w by layer, and the trial losses met on the way: of the start, then after each step."""

    importance: dict[str, Tensor]
    losses: tuple[float, ...]


@dataclass(frozen=True)
class ImportanceSolver:
    """w = argmin over a set of f(x - gamma w g), by `steps` steps of mirror descent or projected gradient.

    within: "simplex" (sum 1 in each layer, trials take w / max w; S0), "scaled_simplex" (sum d in each layer; ImpK_s of
    the thesis) or "box" (low to high; ImpK_c). eta is the step, lam the weight of the entropy term (simplexes only).
    start: "ones", "centre" of the set, or in proportion to "gradient" (|g|) or "square" (g^2); warm_start begins with
    the last w instead, if there is one. scope "joint" moves all layers in a trial, "layerwise" one after another, the
    others standing still. shared=True makes one w for all ranks from the average slope; else each rank finds its own,
    in silence. Layers whose name fits a pattern of `skip` ("*bn*") get no w, which means one.
    keep="best" gives the w with the least trial loss of all that were met; "last" the one it ended with, as published.
    """

    within: str = "scaled_simplex"
    steps: int = 50
    eta: float = 1.0
    lam: float = 0.0
    low: float = 0.0
    high: float = 2.0
    start: str = "ones"
    warm_start: bool = False
    scope: str = "joint"
    refresh_every: int = 1  # in steps of the optimizer
    shared: bool = False
    skip: tuple[str, ...] = ()
    keep: str = "best"

    def __post_init__(self) -> None:
        for name, allowed in (("within", SETS), ("start", STARTS), ("scope", ("joint", "layerwise")),
                              ("keep", ("best", "last"))):  # fmt: skip
            if getattr(self, name) not in allowed:
                raise _wrong(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        if self.steps < 0 or self.refresh_every < 1:
            raise _wrong(f"steps must be 0 or more and refresh_every 1, got {self.steps} and {self.refresh_every}")
        if not (0 < self.eta < math.inf and 0 <= self.lam < math.inf):
            raise _wrong(f"eta must be positive, lam not negative, both finite, got {self.eta} and {self.lam}")
        if not 0 <= self.low < self.high < math.inf:
            raise _wrong(f"0 <= low < high is needed, got {self.low} and {self.high}; 0 and 2 are usual")
        if self.within == "simplex" and self.eta * self.lam >= 1:
            raise _wrong(f"simplex needs eta * lam < 1, got {self.eta} * {self.lam}; scaled_simplex takes any")
        if self.within == "box" and self.lam:
            raise _wrong(f"lam weighs the entropy of a simplex, the box has none; got lam={self.lam}")

    @property
    def set(self) -> Within:
        if self.within == "box":
            return Box(self.eta, self.low, self.high)
        return (Simplex if self.within == "simplex" else ScaledSimplex)(self.eta, self.lam)

    def moves(self, name: str) -> bool:
        """Whether this layer gets a w of its own."""
        return not any(fnmatchcase(name, pattern) for pattern in self.skip)

    def solve(
        self,
        objective: Objective,
        point: Point,
        gradient: Point,
        gamma: float,
        previous: Point | None = None,
        world: World = World(0, 1),  # noqa: B008 (a tuple)
    ) -> Program[Solution]:
        """w for the layers of `gradient`. A program: it asks for nothing unless w is shared (then one sum per step).

        `gradient` is what would be sent: with error feedback or SCAM, the gradient plus the residual. `point` has the
        same names; `previous` is the last w, for a warm start.
        """
        wide = {name: g.detach().to(_work_dtype(g)) for name, g in gradient.items()}
        here = {name: point[name].detach().to(g.dtype) for name, g in wide.items()}
        names = [name for name in wide if self.moves(name)]
        places = {name: self._start(wide[name], (previous or {}).get(name)) for name in names}
        importance: dict[str, Tensor] = {}
        losses: list[float] = []
        for group in [names] if self.scope == "joint" else [[name] for name in names]:
            moving = wide if self.scope == "joint" else {name: wide[name] for name in group}
            trial = _Trial(objective, here, moving, gamma, self.set)
            best, seen = yield from self._descend(trial, {name: places[name] for name in group}, world)
            importance |= {name: self.set.weights(place) for name, place in best.items()}
            losses += seen
        if self.shared:
            importance = yield from _from_rank_zero(importance)
        return Solution(importance, tuple(losses))

    def one_step(self, gradient: Point, after: Point, gamma: float) -> dict[str, Tensor]:
        """The closed form: one step from the start, out of the gradient `after` a whole trial step, at x - gamma g.

        Costs that one gradient and no solving. For the start "ones" it is what one step of `solve` ends with.
        """
        found = {}
        for name in filter(self.moves, gradient):
            g = gradient[name].detach().to(_work_dtype(gradient[name]))
            slope = -gamma * after[name].detach().to(g.dtype) * g
            found[name] = self.set.weights(self.set.step(self._start(g, None), slope))
        return found

    def _start(self, gradient: Tensor, previous: Tensor | None) -> Tensor:
        if self.warm_start and previous is not None:
            return self.set.enter(previous.to(gradient.device, gradient.dtype).view(gradient.shape))
        return self.set.enter(self.set.start(self.start, gradient))

    def _descend(self, trial: _Trial, places: dict[str, Tensor], world: World) -> Program[tuple[Any, list[float]]]:
        """The places of the best w met (or of the last), and the losses of all."""
        within, best, least = self.set, places, math.inf
        losses: list[float] = []
        for left in reversed(range(self.steps + 1)):
            if left == 0 and self.keep == "last":
                return places, losses
            loss, slopes = trial.loss_and_slopes(places) if left else (trial.loss(places), {})
            if self.shared:
                loss, slopes = yield from _mean(loss, slopes, places, world)
            losses.append(loss)
            if loss < least and math.isfinite(loss):  # never true of NaN
                best, least = places, loss
            if not left or not all(map(all_finite, slopes.values())):
                break  # beyond a slope that is not finite there is nowhere to go
            places = {name: within.step(place, slopes[name]) for name, place in places.items()}
        return best if self.keep == "best" else places, losses


@dataclass(frozen=True, eq=False)
class _Trial:
    """The step x - gamma w g; layers that move without a w of their own take the whole step."""

    objective: Objective
    point: Point
    gradient: Point
    gamma: float
    set: Within

    def at(self, places: Point) -> dict[str, Tensor]:
        moved = {
            name: self.point[name] - self.gamma * (self.set.trial(places[name]) * g if name in places else g)
            for name, g in self.gradient.items()
        }
        return dict(self.point) | moved

    def loss(self, places: Point) -> float:
        return self.objective.value(self.at(places))

    def loss_and_slopes(self, places: Point) -> tuple[float, dict[str, Tensor]]:
        """The slope with respect to w is -gamma g times the gradient there."""
        loss, found = self.objective.value_and_gradient(self.at(places))
        scaled = {name: self.gradient[name] * -self.gamma for name in places}
        return loss, {name: found[name].to(g.dtype) * g for name, g in scaled.items()}


def _mean(
    loss: float, slopes: Mapping[str, Tensor], like: Mapping[str, Tensor], world: World
) -> Program[tuple[float, dict[str, Tensor]]]:
    """The averages over ranks of the loss and of all slopes, in one message per type."""
    wide = any(place.dtype == torch.float64 for place in like.values())
    scalar = torch.tensor([loss], dtype=torch.float64 if wide else torch.float32)
    shares = {"": scalar, **slopes}
    sums = yield from fuse([_summed(name, tensor / world.size) for name, tensor in shares.items()])
    return float(sums[0]), dict(zip(slopes, sums[1:], strict=True))


def _summed(name: str, share: Tensor) -> Program[Tensor]:
    return (yield AllReduce(share, labels=reduce_labels(name, share, KIND)))  # type: ignore[no-any-return]


def _from_rank_zero(importance: dict[str, Tensor]) -> Program[dict[str, Tensor]]:
    """Exponentials have other last bits on other processors, so that one rank's w is sent to all."""
    payloads = yield from fuse([_told(name, w) for name, w in importance.items()])
    return dict(zip(importance, payloads, strict=True))


def _told(name: str, w: Tensor) -> Program[Tensor]:
    payload = Payload((w.flatten().contiguous(),), (KIND,), (8.0 * w.element_size() * w.numel(),))
    answer: Payload = yield Broadcast(payload, 0, payload_labels(name, payload))
    return answer.parts[0].to(w.device).view(w.shape)


def _work_dtype(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _wrong(words: str) -> CompositionError:
    return CompositionError(f"ImportanceSolver: {words}")
