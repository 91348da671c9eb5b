"""States that were stored by an earlier version, and the step that follows them.

`PYTHONPATH=OTHER/src python tests/stored_states.py tests/data/stored` writes them with the code of OTHER: a few steps
with fixed tensors, the state of every rank, then what the next step gave. So it uses only what that version has, too;
what is in tests/data/stored was written by commit a4a2c34. `tests/unit/test_stored_states.py` reads it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from thinwire import Exchanger, TensorSpec, World, checkpoint, lockstep, parse
from thinwire.sync import Local, LocalRounds, Nesterov
from thinwire.sync.client import FederatedClient
from thinwire.sync.federated import FederatedServer
from thinwire.sync.optimizers import Adam
from thinwire.sync.sampling import FederatedConfig

LAYERS = [TensorSpec("w", (12, 10)), TensorSpec("v", (7,)), TensorSpec("h", (6, 4), torch.bfloat16)]
COMPOSITIONS = {
    "ef-topk": "ef(topk(density=0.1))",
    "ef-topk-int8": 'ef(topk(density=0.1), residual_dtype="int8")',
    "ef-qsgd-bf16": 'ef(qsgd(bits=4), residual_dtype="bf16")',
    "ef-powersgd": "ef(powersgd(rank=2))",
    "ef21": "ef21(topk(density=0.1))",
    "ef-ef21": "ef(ef21(topk(density=0.1)))",
    "dgc": "dgc(topk(density=0.1), momentum=0.8, clip=3.0)",
    "scam": "scam(topk(density=0.1))",
    "switch": "switch(ef(topk(density=0.1)), ef21(qsgd(bits=4)), controller=accordion(every=2))",
    "lgreco": "ef(adapt(topk(density=0.1), controller=lgreco(every=2, start=1, window=1, error_levels=20)))",
    "scheduled-dgc": "scheduled(dgc(topk(density=0.1)), steps=9)",
    "impk": "ef(impk(density=0.1))",
}
STEPS, RANKS = 5, 2


def tensors(step: int, rank: int) -> dict[str, Tensor]:
    """Whole eighths that look like nothing in particular: no generator, so that no version of torch changes them."""
    found = {}
    for at, spec in enumerate(LAYERS):
        places = torch.arange(spec.numel, dtype=torch.int64)
        numbers = (places * places * 7919 + places * (31 * step + 17 * rank + 5) + 101 * step + 57 * rank + at) % 97
        found[spec.name] = ((numbers - 48).to(torch.float32) / 8).view(spec.shape).to(spec.dtype)
    return found


class Gradients:
    """Two ranks that exchange gradients, as DDP has it."""

    def __init__(self, text: str) -> None:
        self.workers = [Exchanger(LAYERS, parse(text), seed=3) for _ in range(RANKS)]
        for worker in self.workers:
            if "impk" in text:
                worker.importance["w"] = torch.arange(120.0).view(12, 10) / 64

    def step(self, step: int) -> dict[str, Tensor]:
        worlds = [World(rank, RANKS) for rank in range(RANKS)]
        pairs = zip(self.workers, worlds, strict=True)
        return lockstep([worker.run_step(tensors(step, world.rank), step, world) for worker, world in pairs])[0]


class LocalTraining:
    """Two ranks with rounds of two local steps and an outer momentum; a state is taken in the middle of a period."""

    def __init__(self) -> None:
        self.weights = [tensors(0, 0) for _ in range(RANKS)]
        settings = Local(2, parse("ef(topk(density=0.2))"), Nesterov(lr=0.5, momentum=0.75))
        self.workers = [LocalRounds(settings, weights, seed=3) for weights in self.weights]

    def step(self, step: int) -> dict[str, Tensor]:
        for rank, weights in enumerate(self.weights):
            for name, gradient in tensors(step + 1, rank).items():
                weights[name] -= gradient / 16
        lockstep([rounds.after_step(step, World(rank, RANKS)) for rank, rounds in enumerate(self.workers)])
        return dict(self.weights[0])


class Federated:
    """A server with Adam between two rounds, and clients that have just joined."""

    def __init__(self) -> None:
        weights = tensors(0, 0)
        settings = FederatedConfig(clients=2, rounds=9, round_timeout_s=10.0)
        self.server = FederatedServer(weights, settings, "ef(qsgd(bits=8))", Adam(lr=0.125), expected=2)
        self.workers = [self.server]

    def step(self, step: int) -> dict[str, Tensor]:
        clients = [FederatedClient(f"c{at}", self.server.layers, "ef(qsgd(bits=8))") for at in range(2)]
        for client in clients:
            client.handle_welcome(self.server.handle(client.join(), 0.0))
        for at, client in enumerate(clients):
            assert client.begin(self.server.handle(client.pull(), 0.0))
            moved = {name: w - tensors(step + 1, at)[name] / 16 for name, w in client.weights.items()}
            update = client.push(moved, 1 + at)
            assert update is not None and client.settle(self.server.handle(update, 0.0))
        return dict(self.server.weights)


Case = Gradients | LocalTraining | Federated


def cases() -> dict[str, Callable[[], Case]]:
    found = {name: lambda text=text: Gradients(text) for name, text in COMPOSITIONS.items()}
    return found | {"local-rounds": LocalTraining, "federated-server": Federated}


def state_of(case: Case) -> dict[str, Any]:
    """Of all ranks, and weights where the training holds them."""
    workers: Sequence[Any] = case.workers
    states = {str(rank): worker.state_dict() for rank, worker in enumerate(workers)}
    if isinstance(case, LocalTraining):
        states["weights"] = {str(rank): {n: w.clone() for n, w in ws.items()} for rank, ws in enumerate(case.weights)}
    return states


def load(case: Case, states: dict[str, Any]) -> None:
    workers: Sequence[Any] = case.workers
    for rank, worker in enumerate(workers):
        worker.load_state_dict(states[str(rank)])
    for rank, stored in states.get("weights", {}).items():
        for name, tensor in stored.items():
            assert isinstance(case, LocalTraining)
            case.weights[int(rank)][name].copy_(tensor)


def write(folder: str) -> None:
    for name, make in cases().items():
        first, second = make(), make()
        for step in range(STEPS):
            first.step(step)
        states = state_of(first)
        load(second, states)
        after = second.step(STEPS)
        stored = {"states": states, "values": after, "after": state_of(second)}
        checkpoint.save(Path(folder) / name, stored, step=STEPS, keep=1)


if __name__ == "__main__":
    write(sys.argv[1])
