"""A small model, its server and its workers in threads of one process, for tests of `thinwire.serve` and `join`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import thinwire

GOAL = torch.tensor([[1.0, -2.0, 3.0, 0.5]])


def model() -> torch.nn.Linear:
    """All sides begin with zeros; the loss falls to zero at GOAL."""
    made = torch.nn.Linear(4, 1)
    with torch.no_grad():
        made.weight.zero_()
        made.bias.zero_()
    return made


def batches(count: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    noise = torch.Generator().manual_seed(seed)
    for _ in range(count):
        inputs = torch.randn(8, 4, generator=noise)
        yield inputs, inputs @ GOAL.T


def loss(made: torch.nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    inputs, targets = batch
    error: Tensor = made(inputs) - targets
    return error.square().mean()


def serve(optimizer: str = "sgd(lr=0.05)", made: torch.nn.Module | None = None, **options: Any) -> Any:
    return thinwire.serve(made or model(), optimizer, **{"workers": 1, "block": False, **options})


def work(address: str, count: int = 5, noise: int = 0, name: str = "w", factor: float = 1.0, **options: Any) -> int:
    """One worker's whole loop; how many updates were accepted."""
    made = model()
    worker = thinwire.join(made, address, batches(count, noise), name=name, **options)
    for batch in worker:
        (factor * loss(made, batch)).backward()
    accepted: int = worker.report()["accepted"]
    return accepted


def take_part(address: str, rounds: int, name: str = "w", lr: float = 0.05, steps: int = 3, **options: Any) -> int:
    """One federated client's whole loop; in how many rounds it was accepted."""
    made = model()
    own = torch.optim.SGD(made.parameters(), lr)
    worker = thinwire.join(made, address, rounds=rounds, name=name, **options)
    for round in worker:
        for batch in batches(steps, seed=round):
            own.zero_grad()
            loss(made, batch).backward()
            own.step()
    accepted: int = worker.report()["accepted"]
    return accepted


def in_thread(function: Callable[..., object], *arguments: Any, **options: Any) -> threading.Thread:
    thread = threading.Thread(target=function, args=arguments, kwargs=options, daemon=True)
    thread.start()
    return thread
