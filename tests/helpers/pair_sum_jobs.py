"""What worker processes do in tests of long sums."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from thinwire import Exchanger, TensorSpec, TorchDist
from thinwire.aggregators import Dense
from thinwire.core import AllGather, AllReduce, DecodeError, Op, Payload, PeerLostError, Program, Request, fuse_flagged
from thinwire.drivers.headers import make_header
from thinwire.drivers.mesh import bytes_of
from thinwire.drivers.pair_sum import CHUNK_BYTES
from thinwire.wire import as_bytes

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64, torch.uint8)


def ask(request: Request) -> Program[Any]:
    return (yield request)


def draw_share(rank: int, count: int, dtype: torch.dtype) -> Tensor:
    """Numbers of many magnitudes, with infinities and negative zeros among floats; the sums of integers overflow."""
    generator = torch.Generator().manual_seed(rank)
    if not dtype.is_floating_point:
        return torch.randint(0, torch.iinfo(dtype).max, (count,), generator=generator, dtype=torch.int64).to(dtype)
    numbers = torch.randn(count, generator=generator, dtype=torch.float64)
    numbers *= 10.0 ** torch.randint(-6, 4, (count,), generator=generator)
    numbers[::1001], numbers[::1003] = float("inf"), -0.0
    return numbers.to(dtype)


def have_same_bytes(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(as_bytes(one), as_bytes(other))


def sum_long_tensors(driver: TorchDist) -> list[str]:
    """The cases in which the sum is not that of one addition, its tensor was changed, or a byte was not counted."""
    wrong = []
    for dtype in DTYPES:
        chunk = CHUNK_BYTES // dtype.itemsize
        for count in (1, chunk - 1, chunk, chunk + 1, 2 * chunk, 2 * chunk + 7, 3 * chunk - 1):
            shares = [draw_share(rank, count, dtype) for rank in range(2)]
            own = shares[driver.world.rank].clone()
            total = driver.run(ask(AllReduce(own)))
            is_counted = driver.peers.received == 24 + own.nbytes and driver.peers.sent == 24 + own.nbytes
            is_kept = have_same_bytes(own, shares[driver.world.rank])
            if not (have_same_bytes(total, shares[0] + shares[1]) and is_kept and is_counted):
                wrong.append(f"{count} {dtype}")
    return wrong


def sum_behind_others(driver: TorchDist, flags: tuple[bool, bool]) -> tuple[bool, bool, int]:
    """Short requests, a flag and a long sum travel in one message.

    Returns:
        Whether the answers are right, whether the flag was raised, and the bytes sent beside the long tensor.
    """
    rank = driver.world.rank
    shares = [draw_share(each, 300_001, torch.float32) for each in range(2)]
    gather = AllGather(Payload((torch.arange(5 + rank),)))
    smallest = AllReduce(torch.tensor([3.0 - rank]), Op.MAX)
    programs = [ask(gather), ask(AllReduce(shares[rank])), ask(smallest)]
    (gathered, total, most), raised = driver.run(fuse_flagged(programs, flags[rank], 3))
    is_right = [payload.parts[0].tolist() for payload in gathered] == [list(range(5)), list(range(6))]
    is_right = is_right and have_same_bytes(total, shares[0] + shares[1]) and most.tolist() == [3.0]
    return is_right, raised, driver.peers.sent - shares[0].nbytes


def sum_strided_tensor(driver: TorchDist) -> bool:
    """A matrix with gaps in memory gives the sum in its shape."""
    shares = [draw_share(rank, 1200 * 1100, torch.float32).view(1200, 1100).T[:, ::2] for rank in range(2)]
    total = driver.run(ask(AllReduce(shares[driver.world.rank])))
    return torch.equal(total, shares[0] + shares[1])


def sum_into(driver: TorchDist, op: Op) -> tuple[bool, bool]:
    """Whether the answer is right, and whether it is in the memory of `out`."""
    shares = [torch.full((3, 200_001), rank + 1.0) for rank in range(driver.world.size)]
    out = torch.full((3, 200_001), 7.0)
    total = driver.run(ask(AllReduce(shares[driver.world.rank], op, out=out)))
    expected = sum(shares) if op is Op.SUM else shares[-1]
    return torch.equal(total, expected), total.data_ptr() == out.data_ptr()  # type: ignore[arg-type]


def exchange_in_place(driver: TorchDist) -> tuple[bool, bool, bool]:
    """Dense averages that are written over the tensors equal those in new tensors; a bad step gives NaN."""
    specs = [TensorSpec("a", (300_000,)), TensorSpec("b", (7, 9)), TensorSpec("c", (200_000,))]
    bucket = draw_share(driver.world.rank, sum(spec.numel for spec in specs), torch.float32).nan_to_num(posinf=1.0)
    views = [v.view(s.shape) for v, s in zip(bucket.split([s.numel for s in specs]), specs, strict=True)]
    tensors = {spec.name: view for spec, view in zip(specs, views, strict=True)}
    exchanger, world = Exchanger(specs, Dense()), driver.world
    expected = driver.run(exchanger.run_step({name: t.clone() for name, t in tensors.items()}, 0, world))
    driver.run(exchanger.begin(1, world))
    driver.run(exchanger.exchange(tensors, 1, world, into=tensors))
    is_good = exchanger.settle()
    is_equal = all(have_same_bytes(tensors[name], expected[name]) for name in tensors)
    bucket.fill_(float("nan") if world.rank == 1 else 1.0)
    driver.run(exchanger.begin(2, world))
    driver.run(exchanger.exchange(tensors, 2, world, into=tensors))
    return is_good, is_equal, not exchanger.settle() and bool(bucket.isnan().all())


def lose_sender(driver: TorchDist) -> str:
    """Rank 1 closes its connections in the middle of its tensor: the error of rank 0."""
    request = AllReduce(torch.ones(1_000_000), step=5)
    if driver.world.rank == 1:
        data = as_bytes(request.tensor)
        header = memoryview(make_header(request, data.numel()).pack())
        driver.peers._mesh.transfer({0: [header, bytes_of(data)[: 3 * data.numel() // 4]]}, {})
        driver.peers._mesh.disconnect()
        return ""
    try:
        driver.run(ask(request))
    except PeerLostError as error:
        return str(error)
    return "no error"


def announce_other_length(driver: TorchDist, is_detached: bool) -> str:
    """Rank 1 announces less than the request has, or no data at all: the error of rank 0."""
    request = AllReduce(torch.ones(1_000_000), step=5)
    if driver.world.rank == 1:
        header = memoryview(make_header(request, 12, is_detached).pack())
        data = bytearray(24 + request.tensor.nbytes) if is_detached else bytearray(0)
        driver.peers._mesh.transfer({0: [header]}, {0: iter([memoryview(data)])})  # type: ignore[dict-item]
        return ""
    try:
        driver.run(ask(request))
    except DecodeError as error:
        return str(error)
    return "no error"
