"""`thinwire bench growth`, second table: bytes, time and link use of an exchange by the number of workers.

Workers exchange random gradients in buckets over a shaped network, each on a link of its own. Computation is a sleep
before each bucket, so that workers do not compete for cores; it takes half as long as the transfers, which are
therefore the limit. Link use is the bytes that must be sent / rate / time from the first bucket to the last average. A
link carries at most about 0.95 of its rate as data, because frames and acknowledgments are carried as well.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from thinwire.aggregators import Dense, GatherMean, TwoHop
from thinwire.catalog import parse
from thinwire.core import TensorSpec
from thinwire.drivers.meter import HEADER
from thinwire.drivers.processes import run_ranks
from thinwire.drivers.torch_dist import TorchDist

from ..testbed.counters import read_counts
from ..testbed.network import network, rate_bits
from .random_buckets import RandomBuckets, make_layers

COMPOSITIONS = ("ef(topk(density=0.01))", "qsgd(bits=4)", "two_hop(qsgd(bits=4))")
WORKERS = (4, 8)
MILLIONS = 8.0
BUCKET_MB = 4.0
WARMUP_STEPS = 2
SLEEP_SHARE = 0.5  # of the time of the transfers


@dataclass(frozen=True)
class WorkersRow:
    """Means over ranks; time is the median over steps of the slowest rank. Figures of the formula are modelled.

    Attributes:
        formula_mb, formula_ms: bytes that a worker sends by the formula of its aggregator, and their time at the rate.
        data_mb: data that a worker sends, without headers.
        wire_mb: what the interface of a worker counts, frames included.
        link_use: data / rate / time.
        cpu_ms: CPU time of a worker in a step, without that of the shaped network.
    """

    composition: str
    workers: int
    rate: str
    formula_mb: float
    formula_ms: float
    data_mb: float
    wire_mb: float
    step_ms: float
    link_use: float
    cpu_ms: float


def count_formula_bytes(composition: str, layers: Sequence[TensorSpec], workers: int) -> float:
    """Bytes that a worker sends in a step, without headers, for payloads of s bytes in all and n workers.

    gather: (n − 1) s. two_hop: 2 s (n − 1) / n. dense: the same with s the bytes of the gradients.
    """
    part: Any = parse(composition)
    while hasattr(part, "inner"):
        part = part.inner
    if isinstance(part, Dense):
        return 2 * sum(spec.num_bytes for spec in layers) * (workers - 1) / workers
    if not isinstance(part, GatherMean | TwoHop):
        raise ValueError(f"bench growth: there is no formula for {composition!r}; use gather, two_hop or dense")
    payloads = sum(part.compressor.num_bytes(spec) for spec in layers)
    return payloads * (workers - 1) * (1 if isinstance(part, GatherMean) else 2 / workers)


def measure(
    workers: int,
    compositions: Sequence[str],
    rate: str,
    steps: int,
    millions: float,
    on_progress: Callable[[str], None],
) -> list[WorkersRow]:
    """One row per composition, all in the same processes. rate: of a shaped link. steps: after WARMUP_STEPS."""
    bits = rate_bits(rate)
    if bits is None:
        raise ValueError(f"bench growth: the rate must be that of a shaped link, such as 100mbit, got {rate!r}")
    numel = round(1e6 * millions)
    formulas = [count_formula_bytes(composition, make_layers(numel), workers) for composition in compositions]
    cases = [[text, 8 * formula / bits] for text, formula in zip(compositions, formulas, strict=True)]
    with network(workers, rate) as net:
        order = {"numel": numel, "cases": cases, "steps": steps, "device": net.hosts[0].device}
        ranks = run_ranks(
            workers, "thinwire_lab.bench.growth_workers:run_rank", order, on_progress=on_progress,
            timeout_s=120 + 60 * len(cases) * (WARMUP_STEPS + steps), command_prefixes=net.command_prefixes(),
        )  # fmt: skip
    return [
        summarize(composition, rate, formula, [rank[at] for rank in ranks])
        for at, (composition, formula) in enumerate(zip(compositions, formulas, strict=True))
    ]


def summarize(composition: str, rate: str, formula: float, ranks: Sequence[dict[str, Any]]) -> WorkersRow:
    """The row, from the figures of all ranks and the bytes of the formula."""
    bits = rate_bits(rate) or 1.0
    seconds = statistics.median(map(max, zip(*(rank["seconds"] for rank in ranks), strict=True)))
    data, wire, cpu_s = (
        statistics.mean(rank[what] for rank in ranks) for what in ("data_bytes", "wire_bytes", "cpu_s")
    )
    return WorkersRow(
        composition, len(ranks), rate, formula / 1e6, 8e3 * formula / bits, data / 1e6, wire / 1e6, 1e3 * seconds,
        8 * data / bits / seconds, 1e3 * cpu_s,
    )  # fmt: skip


def run_rank(driver: TorchDist, order: dict[str, Any], report: Callable[[Any], None]) -> list[dict[str, Any]]:
    """One rank's part: figures by composition."""
    steps, found = WARMUP_STEPS + order["steps"], []
    for composition, transfer_s in order["cases"]:
        buckets = RandomBuckets(make_layers(order["numel"]), composition, BUCKET_MB, driver.world.rank)
        pause_s = SLEEP_SHARE * transfer_s / len(buckets.buckets)
        seconds, wire, cpu_s = [], [], []
        with TorchDist() as unordered:  # as `attach` makes it
            for step in range(steps):
                report(f"{driver.world.size} workers, {composition}: step {step + 1} of {steps}")
                turn = _time_step(buckets, unordered, step, pause_s, order["device"])
                seconds.append(turn[0])
                wire.append(turn[1])
                cpu_s.append(turn[2])
            kinds = unordered.meter.sum_by("kind")
        data = sum(traffic.sent_bytes for kind, traffic in kinds.items() if kind != HEADER) / steps
        wire_bytes = statistics.mean(wire[WARMUP_STEPS:])
        found.append({
            "seconds": seconds[WARMUP_STEPS:], "wire_bytes": wire_bytes, "data_bytes": data,
            "cpu_s": statistics.median(cpu_s[WARMUP_STEPS:]),
        })  # fmt: skip
    return found


def _time_step(
    buckets: RandomBuckets, driver: TorchDist, step: int, pause_s: float, device: str
) -> tuple[float, int, float]:
    """Seconds of one step, the bytes that the interface counts as sent, and CPU seconds."""
    buckets.fill()
    dist.barrier()
    before = read_counts(device)
    dist.barrier()
    cpu = time.process_time()
    seconds = buckets.run_step(driver, step, pause_s)
    cpu = time.process_time() - cpu
    dist.barrier()
    return seconds, read_counts(device).since(before).sent_bytes, cpu
