"""Measure latency and bandwidth between the ranks of a process group, with requests like those of training."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..core import AllGather, AllReduce, AllToAll, Payload, Program, Request, World
from ..drivers.driver import Driver

THIN_MBIT_S = 1000.0  # below, sending takes longer than compressing; at 1 Gbit/s only the fastest compositions gain
FAST_MBIT_S = 5000.0  # above, sending keeps two cores busy, which compressing needs as well
_MIN_MESSAGE_BYTES, _MAX_MESSAGE_BYTES = 1 << 16, 1 << 26
_MIN_MESSAGE_S = 0.2  # beyond, the latency of a message is negligible
_REPETITIONS = 3


@dataclass(frozen=True)
class LinkRate:
    """Bandwidth from one rank to the next of the ring, while all links of the ring are in use."""

    source: int
    to: int
    mbit_s: float


@dataclass(frozen=True)
class LinkMeasurement:
    """Latency and bandwidth of a process group.

    latency_us: median time of an all-reduce of one number, headers included. message_bytes: of the bandwidth test.
    rates: of the ring 0, 1, 2, ... 0.
    """

    ranks: int
    latency_us: float
    message_bytes: int
    rates: tuple[LinkRate, ...]

    @property
    def slowest_mbit_s(self) -> float:
        return min(rate.mbit_s for rate in self.rates)


def measure_link(driver: Driver, reps: int = 30) -> LinkMeasurement | None:
    """Measure latency and bandwidth among all ranks.

    Args:
        driver: of this rank; all ranks of the group must call this together.
        reps: how often the latency is measured.

    Returns:
        The same numbers on all ranks; None in a group of one.
    """
    size = driver.world.size
    if size == 1:
        return None
    latency_s = statistics.median(_seconds(driver, AllReduce(torch.zeros(1))) for _ in range(reps))
    num_bytes, slowest = _MIN_MESSAGE_BYTES, 0.0
    while True:
        request = make_ring_message(driver.world, num_bytes)
        mine = min(_seconds(driver, request) for _ in range(_REPETITIONS))  # other load on the machine only adds time
        times = _gather_numbers(driver, [mine, latency_s])
        slowest = max(seconds for seconds, _ in times)  # so that all ranks take the same branch
        if slowest >= _MIN_MESSAGE_S or num_bytes >= _MAX_MESSAGE_BYTES:
            break
        num_bytes *= 4
    busy = [seconds for seconds, _ in times]
    return LinkMeasurement(
        size, 1e6 * max(latency for _, latency in times), num_bytes, compute_ring_rates(busy, num_bytes)
    )


def make_ring_message(world: World, num_bytes: int) -> AllToAll:
    """An all-to-all with so many bytes to the next rank of the ring and none to the others."""
    sizes = [num_bytes if to == (world.rank + 1) % world.size else 0 for to in range(world.size)]
    return AllToAll(tuple(Payload((torch.zeros(size, dtype=torch.uint8),)) for size in sizes))


def compute_ring_rates(seconds: Sequence[float], num_bytes: int) -> tuple[LinkRate, ...]:
    """Rates of all links from each rank's time.

    A rank ends when it has sent and received, so a link took at most the shorter time of its two ends.
    """
    size = len(seconds)
    ends = [(rank, (rank + 1) % size) for rank in range(size)]
    return tuple(LinkRate(a, b, 8e-6 * num_bytes / min(seconds[a], seconds[b])) for a, b in ends)


def describe_link(slowest_mbit_s: float) -> str:
    """Say whether compression is likely to pay at this rate. A rule of thumb: model, batch and cores matter."""
    rate = f"the slowest link carries {slowest_mbit_s:,.0f} Mbit/s"
    if slowest_mbit_s < THIN_MBIT_S:
        return f"thin: compress ({rate}, less than {THIN_MBIT_S:,.0f})"
    if slowest_mbit_s < FAST_MBIT_S:
        between = f"between {THIN_MBIT_S:,.0f} and {FAST_MBIT_S:,.0f}"
        return (
            f"neither thin nor fast: powersgd or half precision may gain a little, others lose time ({rate}, {between})"
        )
    return f"fast: dense is likely as good ({rate}, more than {FAST_MBIT_S:,.0f})"


def _seconds(driver: Driver, request: Request) -> float:
    """Seconds of one request, after a barrier: waiting for the slowest rank does not count."""
    driver.run(_ask(AllReduce(torch.zeros(1))))
    began = time.perf_counter()
    driver.run(_ask(request))
    return time.perf_counter() - began


def _gather_numbers(driver: Driver, figures: Sequence[float]) -> list[list[float]]:
    mine = torch.tensor(figures, dtype=torch.float64)
    return [payload.parts[0].tolist() for payload in driver.run(_ask(AllGather(Payload((mine,)))))]


def _ask(request: Request) -> Program[Any]:
    return (yield request)
