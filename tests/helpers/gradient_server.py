"""A GradientServer with its workers, gradients that follow from worker and step, and schedules of a simulation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from thinwire.core import derive_key
from thinwire.sync.members import Staleness
from thinwire.sync.optimizers import SGD
from thinwire.sync.server import GradientServer
from thinwire.sync.worker import GradientWorker
from thinwire_lab.published.simulated_workers import Schedule

SHAPES = {"a": (4, 3), "b": (5,)}


def start(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def gradient(worker: str, step: int, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of |w - t|^2/2 with a target of this worker's own and a little noise of this step's."""
    generator = torch.Generator().manual_seed(derive_key("target", worker) % 2**31)
    noise = torch.Generator().manual_seed(derive_key("noise", worker, step) % 2**31)
    return {
        n: w - torch.randn(w.shape, generator=generator) + 0.1 * torch.randn(w.shape, generator=noise)
        for n, w in weights.items()
    }


def shrinking(worker: str, step: int, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """A cheaper one, for many steps."""
    return {name: 0.1 * weight for name, weight in weights.items()}


def team(
    count: int,
    exchange: str = "dense()",
    staleness: Staleness | None = None,
    optimizer: Any = None,
    down: str | None = None,
    **settings: Any,
) -> tuple[GradientServer, list[GradientWorker]]:
    server = GradientServer(
        start(),
        optimizer or SGD(0.1, momentum=0.5),
        exchange,
        staleness or Staleness(),
        workers=count,
        downlink_compression=down,
        **settings,
    )
    return server, [GradientWorker(f"w{i}", server.layers, exchange, down) for i in range(count)]


def even(workers: list[GradientWorker], **settings: Any) -> Schedule:
    return Schedule({w.name: 1.0 for w in workers}, **settings)


def straggling(workers: list[GradientWorker], **settings: Any) -> Schedule:
    return Schedule({w.name: 10.0 if i == 0 else 1.0 for i, w in enumerate(workers)}, **settings)


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def welcome(server: GradientServer, worker: GradientWorker, now: float = 0.0) -> None:
    worker.handle_welcome(server.handle(worker.join(), now))


def begin(server: GradientServer, worker: GradientWorker, now: float = 0.0) -> bool:
    return worker.begin(server.handle(worker.pull(), now))
