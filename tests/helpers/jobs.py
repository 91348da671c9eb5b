"""What worker processes do in tests: each function runs on every rank with its driver."""

from __future__ import annotations

import gc
import hashlib
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import Any

import torch
from torch import Tensor

from helpers.cases import draw
from thinwire import Exchanger, ImportanceSolver, Meter, Refresher, TensorSpec, TorchDist, World, parse
from thinwire.core import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    NeighborExchange,
    Op,
    Payload,
    Program,
    ReduceScatter,
    Request,
    Work,
)
from thinwire.importance import FunctionObjective

LAYERS = [
    TensorSpec("a.weight", (40, 30)),
    TensorSpec("a.bias", (30,)),
    TensorSpec("half", (17,), torch.bfloat16),
    TensorSpec("empty", (0,)),
]
MeterTable = dict[tuple[object, ...], tuple[Any, ...]]


def gradients(step: int, rank: int) -> dict[str, Tensor]:
    return {s.name: draw("gaussian", s.shape, s.dtype, 1000 * step + rank) for s in LAYERS}


def train(exchanger: Exchanger, world: World, steps: int) -> Program[str]:
    """A few steps as a program: the digest of all weights, which must not depend on the driver."""
    weights = {s.name: torch.zeros(s.shape, dtype=s.dtype) for s in LAYERS}
    for step in range(steps):
        agreed = yield from exchanger.run_step(gradients(step, world.rank), step, world)
        weights = {name: weights[name] - 0.1 * agreed[name] for name in weights}
    return digest(weights)


def digest(weights: dict[str, Tensor]) -> str:
    sha = hashlib.sha256()
    for name in sorted(weights):
        sha.update(weights[name].contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def train_all(driver: TorchDist, texts: Sequence[str], steps: int) -> list[tuple[str, MeterTable]]:
    """(digest, meter rows) for each composition."""
    results = []
    for text in texts:
        driver.set_meter(Meter())
        exchanger = Exchanger(LAYERS, parse(text), seed=11)
        results.append((driver.run(train(exchanger, driver.world, steps)), table(driver.meter)))
    return results


def table(meter: Meter) -> MeterTable:
    """Everything the meter counted, as plain values."""
    return {tuple(where): astuple(traffic) for where, traffic in meter.rows.items()}


def ask(driver: TorchDist, make: Callable[[int, int], Request]) -> Any:
    """The answer to one request, made by a function of (rank, size)."""
    return driver.run(_ask(make(*driver.world)))


def _ask(request: Request) -> Program[Any]:
    return (yield request)


def reduce_of(dtype: torch.dtype, op: Op, strided: bool = False) -> Callable[[int, int], Request]:
    def make(rank: int, size: int) -> Request:
        tensor = (torch.arange(14) % 5 + rank).to(dtype)
        return AllReduce(tensor[::2] if strided else tensor, op)

    return make


def all_requests(driver: TorchDist) -> bool:
    """Sums of every type, maxima, bits of any, strided tensors, gathers of differing lengths, broadcasts from every root, swaps."""
    rank, size = driver.world
    for dtype in (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.uint8,
    ):
        for op in (Op.SUM, Op.MAX):
            got = ask(driver, reduce_of(dtype, op))
            base = torch.arange(14) % 5
            expected = torch.stack([base + r for r in range(size)]).sum(0) if op is Op.SUM else base + size - 1
            assert got.dtype == dtype and torch.equal(got.long(), expected), (dtype, op, got)
    for dtype in (torch.uint8, torch.int16, torch.int32, torch.int64):
        bits = torch.tensor([1 << rank, 0, 64, rank % 2], dtype=dtype)
        marks = driver.run(_ask(AllReduce(bits, Op.OR)))
        assert marks.dtype == dtype and marks.tolist() == [(1 << size) - 1, 0, 64, 1], (dtype, marks)
    wrapped = ask(driver, lambda r, n: AllReduce(torch.full((5,), 2**31 - 1, dtype=torch.int32)))
    assert wrapped.tolist() == [(size * (2**31 - 1) + 2**31) % 2**32 - 2**31] * 5, "exact sketches rely on it"
    strided = ask(driver, reduce_of(torch.float32, Op.SUM, strided=True))
    assert strided.tolist() == [sum(i % 5 + r for r in range(size)) for i in range(0, 14, 2)]
    assert ask(driver, lambda r, n: AllReduce(torch.zeros(0))).numel() == 0
    assert ask(driver, lambda r, n: AllReduce(torch.ones(()))).item() == size
    payload = Payload((torch.full((3 * rank,), float(rank)), torch.tensor([rank], dtype=torch.int16)))
    gathered = ask(driver, lambda r, n: AllGather(payload))
    assert [p.parts[0].tolist() for p in gathered] == [[float(r)] * (3 * r) for r in range(size)]
    assert [p.parts[1].item() for p in gathered] == list(range(size))
    boxes = tuple(Payload((torch.full((rank + to,), 10.0 * rank + to),)) for to in range(size))
    received = ask(driver, lambda r, n: AllToAll(boxes))
    assert [p.parts[0].tolist() for p in received] == [[10.0 * r + rank] * (r + rank) for r in range(size)]
    after, before = (rank + 1) % size, (rank - 1) % size  # one way round, and payloads of differing lengths
    mine = Payload((torch.full((5 * rank,), float(rank)), torch.tensor([rank], dtype=torch.int16)))
    got = ask(driver, lambda r, n: NeighborExchange(((after, mine),), (before,)))
    assert got[0].parts[0].tolist() == [float(before)] * (5 * before) and got[0].parts[1].item() == before
    to_first = ((0, mine),) if rank else ()
    got = ask(
        driver,
        lambda r, n: NeighborExchange(
            to_first, () if rank else tuple(range(size - 1, 0, -1)), (torch.float32, torch.int16)
        ),
    )
    assert [p.parts[1].item() for p in got] == ([] if rank else list(range(size - 1, 0, -1)))
    shards = tuple(torch.arange(to + 2.0).view(1, -1) + 10 * rank for to in range(size))
    got = ask(driver, lambda r, n: ReduceScatter(shards, r))
    assert got.tolist() == [[size * i + 10.0 * sum(range(size)) for i in range(rank + 2)]]
    largest = ask(driver, lambda r, n: ReduceScatter(shards, r, Op.MAX))
    assert largest.tolist() == [[i + 10.0 * (size - 1) for i in range(rank + 2)]]
    assert ask(driver, lambda r, n: Work(float(r))) is None
    for root in range(size):
        payload = Payload((torch.arange(rank + 1), torch.full((root,), rank, dtype=torch.float64)))
        got = driver.run(_ask(Broadcast(payload, root)))
        assert got.parts[0].tolist() == list(range(root + 1)) and got.parts[1].tolist() == [root] * root
    return True


def disagree(driver: TorchDist, kind: str) -> object:
    """Rank 1 wants something else."""
    odd = driver.world.rank == 1
    if kind == "collective" and odd:
        return ask(driver, lambda r, n: AllGather(Payload((torch.zeros(3),))))
    if kind == "size" and odd:
        return ask(driver, lambda r, n: AllReduce(torch.zeros(5)))
    if kind == "type" and odd:
        return ask(driver, lambda r, n: AllReduce(torch.zeros(4).double()))
    if kind == "step" and odd:
        return ask(driver, lambda r, n: AllReduce(torch.zeros(4), step=9))
    if kind == "swap":
        payload = Payload((torch.zeros(3, dtype=torch.int16 if odd else torch.float32),))
        return ask(driver, lambda r, n: NeighborExchange((((r + 1) % n, payload),), ((r - 1) % n,), step=5))
    return ask(driver, lambda r, n: AllReduce(torch.zeros(4)))


def stay_away(driver: TorchDist) -> object:
    """Rank 1 does not come, but lives."""
    if driver.world.rank == 1:
        time.sleep(5)
        return None
    return ask(driver, lambda r, n: AllReduce(torch.zeros(4)))


def submit_many(driver: TorchDist) -> list[Any]:
    """Whole programs queued at once end in the order of submission, on every rank alike."""
    futures = [driver.submit(_ask(AllReduce(torch.tensor([float(i)])))) for i in range(50)]
    return [future.result().item() for future in futures]


def quarrel_under_an_exchanger(driver: TorchDist) -> dict[str, Tensor]:
    """Ranks with different compositions."""
    text = "ef(topk(k=2))" if driver.world.rank == 0 else "ef(sign())"
    exchanger = Exchanger(LAYERS, parse(text))
    return driver.run(exchanger.run_step(gradients(0, driver.world.rank), 5, World(*driver.world)))


def digests(driver: TorchDist, argument: dict[str, Any], tell: Callable[..., object]) -> dict[str, str]:
    """The weights after a few steps, by composition; and a plain product, whose bits depend on the machine's library."""
    results = {"product": digest({"product": draw("gaussian", (64, 500)) @ draw("gaussian", (500, 64))})}
    for text in argument["texts"]:
        exchanger = Exchanger(LAYERS, parse(text), seed=11)
        results[text] = driver.run(train(exchanger, driver.world, argument["steps"]))
    return results


def shared_importance(driver: TorchDist) -> tuple[str, tuple[float, ...], str, MeterTable]:
    """w found together by ranks that hold different data; then a few exchanges with it. Digests of both."""
    rank, size = driver.world
    specs = [TensorSpec("a", (40, 30)), TensorSpec("b", (17,))]
    exchanger = Exchanger(specs, parse('ef(impk(density=0.1, weights="plain"))'))
    curvature = {s.name: 1 + draw("gaussian", s.shape, seed=rank).abs() for s in specs}
    point = {s.name: draw("gaussian", s.shape, seed=9) for s in specs}
    objective = FunctionObjective(
        lambda at: sum(float((curvature[n] * at[n].square()).sum()) for n in at) / 2,
        lambda at: {n: curvature[n] * at[n] for n in at},
    )
    gradient = {n: curvature[n] * x for n, x in point.items()}
    solver = ImportanceSolver("scaled_simplex", steps=5, eta=1.0, shared=True)
    refresher = Refresher(solver, exchanger.importance)
    solution = driver.run(refresher.refresh(objective, point, gradient, 0.1, 0, World(rank, size)))
    for step in range(3):
        agreed = driver.run(exchanger.run_step(gradient, step, World(rank, size)))
    return digest(dict(exchanger.importance)), solution.losses, digest(agreed), table(driver.meter)


def drop_driver(driver: TorchDist) -> bool:
    """Whether a driver that has run a program is freed with its last reference, without the garbage collector."""
    other = TorchDist(driver.group)
    other.run(_ask(AllReduce(torch.zeros(4))))
    watched = weakref.ref(other)
    gc.disable()
    try:
        del other
        for _ in range(100):  # the communication thread may still hold its last job
            if watched() is None:
                return True
            time.sleep(0.05)
        return False
    finally:
        gc.enable()
