"""How fast are the links between the ranks of a process group? Measured by messages such as training sends."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..core import AllGather, AllReduce, AllToAll, Payload, Program, Request, World
from ..drivers.driver import Driver

THIN_MBIT_S = 1000.0  # below, sending takes longer than compressing; at 1 Gbit/s only the cheapest compositions gain
FAST_MBIT_S = 5000.0  # above, two cores are busy sending, and compressing needs them as well
_FIRST_BYTES, _LAST_BYTES = 1 << 16, 1 << 26
_LONG_ENOUGH_S = 0.2  # for a message whose latency does not matter any more
_TURNS = 3


@dataclass(frozen=True)
class Rate:
    """One way of one link of the ring, while all links of the ring are busy."""

    source: int
    to: int
    mbit_s: float


@dataclass(frozen=True)
class LinkFigures:
    """latency_us: median time of an all-reduce of one number, headers included. rates: of the ring 0, 1, 2, ... 0."""

    ranks: int
    latency_us: float
    message_bytes: int
    rates: tuple[Rate, ...]

    @property
    def slowest_mbit_s(self) -> float:
        return min(rate.mbit_s for rate in self.rates)


def measure_link(driver: Driver, reps: int = 30) -> LinkFigures | None:
    """Latency and bandwidth among all ranks, the same figures on each; None for a rank that is alone."""
    size = driver.world.size
    if size == 1:
        return None
    latency_s = statistics.median(_seconds(driver, AllReduce(torch.zeros(1))) for _ in range(reps))
    num_bytes, slowest = _FIRST_BYTES, 0.0
    while True:
        request = to_the_next(driver.world, num_bytes)
        mine = min(_seconds(driver, request) for _ in range(_TURNS))  # a busy machine only adds to it
        times = _told_to_all(driver, [mine, latency_s])
        slowest = max(seconds for seconds, _ in times)  # all ranks decide alike
        if slowest >= _LONG_ENOUGH_S or num_bytes >= _LAST_BYTES:
            break
        num_bytes *= 4
    busy = [seconds for seconds, _ in times]
    return LinkFigures(size, 1e6 * max(latency for _, latency in times), num_bytes, ring_rates(busy, num_bytes))


def to_the_next(world: World, num_bytes: int) -> AllToAll:
    """So many bytes to the next rank of the ring, nothing to the others."""
    sizes = [num_bytes if to == (world.rank + 1) % world.size else 0 for to in range(world.size)]
    return AllToAll(tuple(Payload((torch.zeros(size, dtype=torch.uint8),)) for size in sizes))


def ring_rates(seconds: Sequence[float], num_bytes: int) -> tuple[Rate, ...]:
    """A rank is done when it has sent and received, so a link took no longer than the quicker of its two ends."""
    size = len(seconds)
    ends = [(rank, (rank + 1) % size) for rank in range(size)]
    return tuple(Rate(a, b, 8e-6 * num_bytes / min(seconds[a], seconds[b])) for a, b in ends)


def advice(slowest_mbit_s: float) -> str:
    """What a link of this rate suggests. A rule of thumb: model, batch and cores count as well."""
    rate = f"the slowest link carries {slowest_mbit_s:,.0f} Mbit/s"
    if slowest_mbit_s < THIN_MBIT_S:
        return f"thin: compress ({rate}, less than {THIN_MBIT_S:,.0f})"
    if slowest_mbit_s < FAST_MBIT_S:
        between = f"between {THIN_MBIT_S:,.0f} and {FAST_MBIT_S:,.0f}"
        return f"neither thin nor fast: powersgd or half precision may gain a little, others cost ({rate}, {between})"
    return f"fast: dense is likely as good ({rate}, more than {FAST_MBIT_S:,.0f})"


def _seconds(driver: Driver, request: Request) -> float:
    """From when all ranks are there; the wait for the slowest is not the link's."""
    driver.run(_ask(AllReduce(torch.zeros(1))))
    began = time.perf_counter()
    driver.run(_ask(request))
    return time.perf_counter() - began


def _told_to_all(driver: Driver, figures: Sequence[float]) -> list[list[float]]:
    mine = torch.tensor(figures, dtype=torch.float64)
    return [payload.parts[0].tolist() for payload in driver.run(_ask(AllGather(Payload((mine,)))))]


def _ask(request: Request) -> Program[Any]:
    return (yield request)
