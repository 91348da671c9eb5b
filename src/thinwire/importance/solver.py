"""Importance solver (Khafizov & Beznosikov, 2024; Khafizov, 2025): w = argmin f(x - γ w ⊙ g) over a constraint set."""

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
from .constraints import STARTS, Box, ConstraintSet, ScaledSimplex, Simplex
from .objectives import Objective, Point

CONSTRAINTS = ("simplex", "scaled_simplex", "box")
KIND = "importance"  # label of the bytes of a shared solution


class Solution(NamedTuple):
    """Result of the solver: w by layer, and the trial losses of the start and after each step."""

    importance: dict[str, Tensor]
    losses: tuple[float, ...]


@dataclass(frozen=True)
class ImportanceSolver:
    """Solve for the importance w that makes the trial step x - γ w ⊙ g reduce the loss most.

    Runs `steps` steps of mirror descent (simplexes) or projected gradient (box), each one forward and backward pass.

    Args:
        constraint: "simplex" (sum 1 in each layer; trials use w / max w), "scaled_simplex" (sum d in each layer;
            ImpK_s) or "box" (low to high; ImpK_c).
        steps: number of descent steps.
        eta: step size.
        lam: weight of the entropy term; simplexes only.
        low: lower bound of the box.
        high: upper bound of the box.
        start: initial w: "ones", "center" of the set, or in proportion to "gradient" (|g|) or "gradient_squared" (g²).
        warm_start: start from the last w instead, if there is one.
        scope: "joint" moves all layers in each trial; "layerwise" solves for one layer after another.
        refresh_every: steps of the optimizer between two solves, for Refresher.
        shared: average slopes and losses over the ranks, so that all have one w. Else each rank solves for its own
            without communication.
        skip: patterns of layer names, such as "*bn*", that get no w.
        keep: "best" returns the w with the least trial loss, "last" the final one, as published.
    """

    constraint: str = "scaled_simplex"
    steps: int = 50
    eta: float = 1.0
    lam: float = 0.0
    low: float = 0.0
    high: float = 2.0
    start: str = "ones"
    warm_start: bool = False
    scope: str = "joint"
    refresh_every: int = 1
    shared: bool = False
    skip: tuple[str, ...] = ()
    keep: str = "best"

    def __post_init__(self) -> None:
        for name, allowed in (("constraint", CONSTRAINTS), ("start", STARTS), ("scope", ("joint", "layerwise")),
                              ("keep", ("best", "last"))):  # fmt: skip
            if getattr(self, name) not in allowed:
                raise _error(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        if self.steps < 0 or self.refresh_every < 1:
            raise _error(
                f"steps must be at least 0 and refresh_every at least 1, got {self.steps} and {self.refresh_every}"
            )
        if not (0 < self.eta < math.inf and 0 <= self.lam < math.inf):
            raise _error(f"eta must be positive, lam not negative, both finite, got {self.eta} and {self.lam}")
        if not 0 <= self.low < self.high < math.inf:
            raise _error(
                f"low and high must satisfy 0 <= low < high, got {self.low} and {self.high}; 0 and 2 are usual"
            )
        if self.constraint == "simplex" and self.eta * self.lam >= 1:
            raise _error(f"simplex needs eta * lam < 1, got {self.eta} * {self.lam}; scaled_simplex takes any")
        if self.constraint == "box" and self.lam:
            raise _error(f"lam weighs the entropy of a simplex, which a box does not have; got lam={self.lam}")

    @property
    def constraint_set(self) -> ConstraintSet:
        """The set and its descent step."""
        if self.constraint == "box":
            return Box(self.eta, self.low, self.high)
        return (Simplex if self.constraint == "simplex" else ScaledSimplex)(self.eta, self.lam)

    def solves_for(self, name: str) -> bool:
        """Whether the layer of this name gets a w: no pattern of `skip` matches."""
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
        """Solve for w of the layers of `gradient`.

        Args:
            objective: the loss on a minibatch.
            point: the parameters by name, with the names of `gradient`.
            gradient: what would be sent by name; with error feedback or SCAM, gradient plus residual.
            gamma: step size of the trial step.
            previous: the last w, for a warm start.
            world: rank and size.

        Returns:
            A program. It yields no request unless w is shared: then one all-reduce per step and a broadcast.
        """
        wide = {name: g.detach().to(_work_dtype(g)) for name, g in gradient.items()}
        here = {name: point[name].detach().to(g.dtype) for name, g in wide.items()}
        names = [name for name in wide if self.solves_for(name)]
        iterates = {name: self._first_iterate(wide[name], (previous or {}).get(name)) for name in names}
        importance: dict[str, Tensor] = {}
        losses: list[float] = []
        for group in [names] if self.scope == "joint" else [[name] for name in names]:
            moving = wide if self.scope == "joint" else {name: wide[name] for name in group}
            trial = _Trial(objective, here, moving, gamma, self.constraint_set)
            best, group_losses = yield from self._descend(trial, {name: iterates[name] for name in group}, world)
            importance |= {name: self.constraint_set.weights(iterate) for name, iterate in best.items()}
            losses += group_losses
        if self.shared:
            importance = yield from _broadcast_from_rank0(importance)
        return Solution(importance, tuple(losses))

    def solve_one_step(self, gradient: Point, gradient_after: Point, gamma: float) -> dict[str, Tensor]:
        """Return w after one step from the start, in closed form.

        Costs no more than `gradient_after`, the gradient after a full trial step, at x - γ g. With start="ones" it is
        what `solve` with steps=1 gives.
        """
        weights, constraint_set = {}, self.constraint_set
        for name in filter(self.solves_for, gradient):
            g = gradient[name].detach().to(_work_dtype(gradient[name]))
            slope = -gamma * gradient_after[name].detach().to(g.dtype) * g
            weights[name] = constraint_set.weights(constraint_set.step(self._first_iterate(g, None), slope))
        return weights

    def _first_iterate(self, gradient: Tensor, previous: Tensor | None) -> Tensor:
        if self.warm_start and previous is not None:
            return self.constraint_set.project(previous.to(gradient.device, gradient.dtype).view(gradient.shape))
        return self.constraint_set.project(self.constraint_set.initial_weights(self.start, gradient))

    def _descend(self, trial: _Trial, iterates: dict[str, Tensor], world: World) -> Program[tuple[Any, list[float]]]:
        """Return the iterates of the best w (or of the last), and all losses."""
        constraint_set, best, best_loss = self.constraint_set, iterates, math.inf
        losses: list[float] = []
        for steps_left in reversed(range(self.steps + 1)):
            if steps_left == 0 and self.keep == "last":
                return iterates, losses
            loss, slopes = trial.loss_and_slopes(iterates) if steps_left else (trial.loss(iterates), {})
            if self.shared:
                loss, slopes = yield from _average_over_ranks(loss, slopes, iterates, world)
            losses.append(loss)
            if loss < best_loss and math.isfinite(loss):  # never true of NaN
                best, best_loss = iterates, loss
            if not steps_left or not all(map(all_finite, slopes.values())):
                break  # a slope that is not finite gives no direction
            iterates = {name: constraint_set.step(iterate, slopes[name]) for name, iterate in iterates.items()}
        return best if self.keep == "best" else iterates, losses


@dataclass(frozen=True, eq=False)
class _Trial:
    """The trial step x - γ w ⊙ g. Layers in `gradient` that have no iterate take the full step."""

    objective: Objective
    point: Point
    gradient: Point
    gamma: float
    constraint_set: ConstraintSet

    def at(self, iterates: Point) -> dict[str, Tensor]:
        trial_weights = {name: self.constraint_set.trial_weights(iterate) for name, iterate in iterates.items()}
        moved = {
            name: self.point[name] - self.gamma * (trial_weights[name] * g if name in trial_weights else g)
            for name, g in self.gradient.items()
        }
        return dict(self.point) | moved

    def loss(self, iterates: Point) -> float:
        return self.objective.value(self.at(iterates))

    def loss_and_slopes(self, iterates: Point) -> tuple[float, dict[str, Tensor]]:
        """Return the loss and its gradient with respect to w, which is -γ g ⊙ (gradient at the trial point)."""
        loss, gradients = self.objective.value_and_gradient(self.at(iterates))
        scaled = {name: self.gradient[name] * -self.gamma for name in iterates}
        return loss, {name: gradients[name].to(g.dtype) * g for name, g in scaled.items()}


def _average_over_ranks(
    loss: float, slopes: Mapping[str, Tensor], like: Mapping[str, Tensor], world: World
) -> Program[tuple[float, dict[str, Tensor]]]:
    """Average the loss and all slopes over the ranks, in one message per dtype."""
    is_wide = any(iterate.dtype == torch.float64 for iterate in like.values())
    scalar = torch.tensor([loss], dtype=torch.float64 if is_wide else torch.float32)
    shares = {"": scalar, **slopes}
    sums = yield from fuse([_all_reduce(name, tensor / world.size) for name, tensor in shares.items()])
    return float(sums[0]), dict(zip(slopes, sums[1:], strict=True))


def _all_reduce(name: str, share: Tensor) -> Program[Tensor]:
    return (yield AllReduce(share, labels=reduce_labels(name, share, KIND)))  # type: ignore[no-any-return]


def _broadcast_from_rank0(importance: dict[str, Tensor]) -> Program[dict[str, Tensor]]:
    """Send rank 0's w to all, because exponentials differ in their last bits between processors."""
    received = yield from fuse([_broadcast(name, w) for name, w in importance.items()])
    return dict(zip(importance, received, strict=True))


def _broadcast(name: str, w: Tensor) -> Program[Tensor]:
    payload = Payload((w.flatten().contiguous(),), (KIND,), (8.0 * w.element_size() * w.numel(),))
    answer: Payload = yield Broadcast(payload, 0, payload_labels(name, payload))
    return answer.parts[0].to(w.device).view(w.shape)


def _work_dtype(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _error(message: str) -> CompositionError:
    return CompositionError(f"ImportanceSolver: {message}")
