"""Adams with real moments, and what worker processes do with them in tests."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import thinwire
from helpers.cases import draw
from helpers.jobs import MeterTable, digest, table
from thinwire import Meter, TorchDist, World, lockstep
from thinwire.moments import AdamMoments, MomentsAveraging, parse_moments

SHAPES = {"a": (40, 30), "b": (30,), "c": (6, 8, 7), "short": (33,), "half": (24, 20)}
TEXTS = (
    "dense()",
    "uniform(bits=8)",
    'moments(uniform(bits=4, block=64), transmit="log")',
    'uniform(bits=2, rounding="stochastic")',
    "qsgd(bits=4)",
    "topk(density=0.1)",
    'ef(topk(density=0.1, values="bf16"))',
    "ef21(topk(density=0.2))",
    "ef21(uniform(bits=4))",
    "randomk(density=0.25, scaled=false)",
    "scheduled(topk(density=0.1), start=0.05, end=0.5, steps=4)",
    "sketch(topk(density=0.05))",
    "ef(union(topk(density=0.1)))",
    "tensor_train(rank=2)",
    "tensor_train(max_error=0.3, dims=(10, 4, 5, 6))",
    "st_hosvd(rank=3)",
    "svd(rank=2)",
)  # fmt: skip


def adam(
    rank: int,
    steps: int = 12,
    kind: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    dtype: torch.dtype = torch.float32,
    sparse: bool = False,
    **options: Any,
) -> tuple[dict[str, nn.Parameter], torch.optim.Optimizer]:
    """An optimizer after so many steps with rank's own gradients; some rows of some see none, as embeddings do."""
    half = {"half": torch.bfloat16}
    weights = {name: nn.Parameter(torch.zeros(shape, dtype=half.get(name, dtype))) for name, shape in SHAPES.items()}
    optimizer = kind(list(weights.values()), lr=0.01, **options)
    for step in range(steps):
        for at, weight in enumerate(weights.values()):
            gradient = draw("gaussian", weight.shape, seed=1000 * step + 100 * at + rank)
            gradient = gradient * torch.logspace(-4, 1, weight.shape[-1]) + 0.1
            if sparse:
                gradient[rank::3] = 0
            weight.grad = gradient.to(weight.dtype)
        optimizer.step()
    return weights, optimizer


def averaging(
    weights: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer, text: str, seed: int = 3
) -> MomentsAveraging:
    return MomentsAveraging(AdamMoments(optimizer, weights), parse_moments(text), dense_below=1, seed=seed)


def read_moments(weights: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    states = {name: optimizer.state[weight] for name, weight in weights.items() if weight in optimizer.state}
    return {f"{name}.{key}": tensor.clone() for name, state in states.items() for key, tensor in state.items()}


def together(
    size: int, text: str, rounds: int = 1, steps: int = 12, **options: Any
) -> tuple[list[dict[str, Tensor]], list[Meter]]:
    """All ranks' moments after so many averagings in lockstep, with a step between; and their meters."""
    adams = [adam(rank, steps, **options) for rank in range(size)]
    ways = [averaging(*one, text) for one in adams]
    meters = [Meter() for _ in adams]
    for at in range(rounds):
        assert all(lockstep([way.average(World(rank, size)) for rank, way in enumerate(ways)], meters))
        for rank, (weights, optimizer) in enumerate(adams):
            if at + 1 < rounds:
                one_more(weights, optimizer, rank, at)
    return [read_moments(*one) for one in adams], meters


def one_more(weights: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer, rank: int, at: int) -> None:
    for place, weight in enumerate(weights.values()):
        weight.grad = draw("gaussian", weight.shape, seed=5000 + 100 * at + 10 * place + rank).to(weight.dtype)
    optimizer.step()


def really(driver: TorchDist, texts: Sequence[str], rounds: int) -> list[tuple[str, MeterTable]]:
    """The same on real processes: digests of moments and tables of bytes."""
    results = []
    for text in texts:
        driver.set_meter(Meter())
        weights, optimizer = adam(driver.world.rank)
        way = averaging(weights, optimizer, text)
        for at in range(rounds):
            assert driver.run(way.average(driver.world))
            if at + 1 < rounds:
                one_more(weights, optimizer, driver.world.rank, at)
        results.append((digest(read_moments(weights, optimizer)), table(driver.meter)))
    return results


def average(driver: TorchDist, text: str, **options: Any) -> tuple[dict[str, Tensor], str]:
    """By the public call."""
    rank = driver.world.rank
    weights, optimizer = adam(rank, **options)
    with thinwire.moments.average(optimizer, text, dense_below=1, group=driver.group, timeout_s=20.0) as handle:
        return read_moments(weights, optimizer), str(handle.report())


def resume(driver: TorchDist, text: str, stop: int, rounds: int = 5) -> bool:
    """Is an averaging that was stored and taken up by fresh objects the same as one that was not?"""
    rank = driver.world.rank
    options: dict[str, Any] = {"dense_below": 1, "group": driver.group, "timeout_s": 20.0, "now": False}
    weights, optimizer = adam(rank)
    with thinwire.moments.average(optimizer, text, **options) as handle:
        for at in range(rounds):
            if at == stop:
                stored = copy.deepcopy((handle.state_dict(), optimizer.state_dict()))
            handle.average()
            one_more(weights, optimizer, rank, at)
        expected = digest(read_moments(weights, optimizer))
    weights, optimizer = adam(rank, steps=0)
    with thinwire.moments.average(optimizer, text, **options) as handle:
        optimizer.load_state_dict(stored[1])
        handle.load_state_dict(stored[0])
        for at in range(stop, rounds):
            handle.average()
            one_more(weights, optimizer, rank, at)
    return digest(read_moments(weights, optimizer)) == expected


def hand_over(
    driver: TorchDist,
    text: Mapping[int, str],
    sender: int,
    receiver: int,
    steps: int = 0,
    parameters: list[str] | None = None,
) -> tuple[str, str] | tuple[dict[str, Tensor], tuple[float, float] | None]:
    """Moments of the receiver and of the sender, and bytes; the third rank does something else."""
    rank = driver.world.rank
    weights, optimizer = adam(rank, steps=12 if rank == sender else steps)
    shard = None if parameters is None else [weights[name] for name in parameters]
    options: dict[str, Any] = {"dense_below": 1, "group": driver.group, "timeout_s": 20.0, "parameters": shard}
    taken = None
    try:
        if rank == sender:
            taken = thinwire.moments.send(optimizer, text[rank], to=receiver, **options)
        elif rank == receiver:
            taken = thinwire.moments.receive(optimizer, text[rank], source=sender, **options)
    except thinwire.ThinwireError as error:
        return type(error).__name__, str(error)
    return read_moments(weights, optimizer), (taken.sent_bytes, taken.received_bytes) if taken else None


def spoiled(driver: TorchDist) -> tuple[str, bool] | None:
    """A NaN on rank 1: no rank's moments change."""
    weights, optimizer = adam(driver.world.rank)
    if driver.world.rank == 1:
        optimizer.state[weights["a"]]["exp_avg"][0, 0] = float("nan")
    before = read_moments(weights, optimizer)
    try:
        thinwire.moments.average(optimizer, "uniform()", dense_below=1, group=driver.group)
    except thinwire.NonFiniteError as error:
        after = read_moments(weights, optimizer)
        return str(error), all(torch.equal(after[n].nan_to_num(7.0), before[n].nan_to_num(7.0)) for n in before)
    return None


def disagree(driver: TorchDist, texts: Sequence[str]) -> tuple[str, str] | None:
    _, optimizer = adam(driver.world.rank)
    try:
        thinwire.moments.average(optimizer, texts[driver.world.rank], group=driver.group)
    except thinwire.ThinwireError as error:
        return type(error).__name__, str(error)
    return None


def refused(driver: TorchDist, text: str, to: int) -> tuple[str, str] | None:
    _, optimizer = adam(0)
    try:
        thinwire.moments.send(optimizer, text, to=to, group=driver.group)
    except thinwire.ThinwireError as error:
        return type(error).__name__, str(error)
    return None
