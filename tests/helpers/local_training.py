"""Local training of a small problem in lockstep, and the algorithms of Tolstobrov (2022) as printed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from helpers.cases import draw
from thinwire import World, lockstep
from thinwire.core import Program
from thinwire.sync import Local, LocalRounds, parse_sync

SHAPES = {"a": (5, 4), "b": (7,), "c": (3, 3), "d": (2,)}
D = torch.float64


def start(dtype: torch.dtype = D) -> dict[str, Tensor]:
    return {name: draw("gaussian", shape, seed=at).to(dtype) for at, (name, shape) in enumerate(SHAPES.items())}


def gradient(rank: int, step: int, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of a quadratic that is another one for each rank, with noise of the step."""
    return {
        name: (1 + rank / 4) * (w - rank * draw("gaussian", w.shape, seed=77).to(w.dtype))
        + 0.1 * draw("gaussian", w.shape, seed=1000 * step + rank).to(w.dtype)
        for name, w in weights.items()
    }


class Worker:
    """One rank: its weights, its optimizer (plain SGD unless another is made) and its rounds."""

    def __init__(
        self,
        rank: int,
        size: int,
        settings: Local,
        lr: float = 0.1,
        make: Callable[[list[Tensor]], torch.optim.Optimizer] | None = None,
        dtype: torch.dtype = D,
        spoil: tuple[int, int] | None = None,
    ) -> None:
        self.world, self.lr, self.done, self.spoil = World(rank, size), lr, 0, spoil
        self.weights = start(dtype)
        self.optimizer = (make or (lambda weights: torch.optim.SGD(weights, lr=lr)))(list(self.weights.values()))
        self.rounds = LocalRounds(settings, self.weights, seed=3)
        self.merged: list[Any] = []

    def train(self, steps: int) -> Program[dict[str, Tensor]]:
        for step in range(self.done, self.done + steps):
            gradients = gradient(self.world.rank, step, self.weights)
            if self.spoil == (self.world.rank, step):
                gradients["b"][0] = float("nan")
            if self.rounds.settings.payload == "gradients":
                gradients = yield from self.rounds.average_gradients(gradients, step, self.world)
            self.merged += self.rounds.before_step(step)
            for name, weight in self.weights.items():
                weight.grad = gradients.get(name)
            self.optimizer.step()
            self.merged += yield from self.rounds.after_step(step, self.world)
        self.done += steps
        return self.weights

    def state(self) -> dict[str, Any]:
        weights = {name: w.clone() for name, w in self.weights.items()}
        return {"weights": weights, "optimizer": self.optimizer.state_dict(), "rounds": self.rounds.state_dict()}

    def load(self, state: dict[str, Any], done: int) -> None:
        for name, w in self.weights.items():
            w.copy_(state["weights"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.rounds.load_state_dict(state["rounds"])
        self.done = done


def workers(size: int, settings: str | Local, **options: Any) -> list[Worker]:
    settings = settings if isinstance(settings, Local) else parse_sync(settings)
    return [Worker(rank, size, settings, **options) for rank in range(size)]


def trained(size: int, settings: str | Local, steps: int, **options: Any) -> list[dict[str, Tensor]]:
    """All ranks' weights after so many steps."""
    return lockstep([worker.train(steps) for worker in workers(size, settings, **options)])


# Tolstobrov (2022) as printed: lists of weights by rank


def algorithm_1(size: int, period: int, lr: float, steps: int) -> list[dict[str, Tensor]]:
    """Local-SGD (Tolstobrov, 2022): iterations k = 1, 2, ... turn w_{k-1} into w_k. If k mod p = 0, the mean of all w_{k-1}
    takes the place of the weights that the gradient was computed at."""
    w = [start() for _ in range(size)]
    for k in range(1, steps + 1):
        g = [gradient(i, k - 1, w[i]) for i in range(size)]  # data are numbered from 0
        if k % period == 0:
            mean = {n: sum(v[n] for v in w) / size for n in SHAPES}
            w = [{n: mean[n] - lr * g[i][n] for n in SHAPES} for i in range(size)]
        else:
            w = [{n: w[i][n] - lr * g[i][n] for n in SHAPES} for i in range(size)]
    return w


def algorithm_2(size: int, lr: float, steps: int, threshold: float | None = None) -> list[dict[str, Tensor]]:
    """Gossip of gradients with partners i ± s; with a threshold it is algorithm 3, where small components are no one's."""
    w, s = [start() for _ in range(size)], 1
    for k in range(steps):
        g = [gradient(i, k, w[i]) for i in range(size)]
        if threshold is not None:
            g = [{n: x * (x.abs() > threshold) for n, x in mine.items()} for mine in g]
        new = []
        for i in range(size):
            r, left = (i + s) % size, (i - s + size) % size
            new.append({n: w[i][n] - lr / 3 * (g[left][n] + g[i][n] + g[r][n]) for n in SHAPES})
        w, s = new, s + 1
        if s > size // 2:
            s = 1
    return w


def bsp(size: int, lr: float, steps: int) -> dict[str, Tensor]:
    w = start()
    for k in range(steps):
        g = [gradient(i, k, w) for i in range(size)]
        w = {n: w[n] - lr * sum(mine[n] for mine in g) / size for n in SHAPES}
    return w


def diloco(size: int, period: int, steps: int, inner: dict[str, Any], outer: dict[str, Any]) -> list[dict[str, Tensor]]:
    """As its paper has it: AdamW inside, torch's Nesterov outside."""
    anchor = start()
    outside = torch.optim.SGD(list(anchor.values()), **outer)
    w = [start() for _ in range(size)]
    inside = [torch.optim.AdamW(list(mine.values()), **inner) for mine in w]
    for k in range(steps):
        for i in range(size):
            for n, g in gradient(i, k, w[i]).items():
                w[i][n].grad = g
            inside[i].step()
        if (k + 1) % period == 0:
            for n in SHAPES:
                anchor[n].grad = torch.as_tensor(sum(anchor[n] - mine[n] for mine in w) / size)
            outside.step()
            for mine in w:
                for n in SHAPES:
                    mine[n].copy_(anchor[n])
    return w
