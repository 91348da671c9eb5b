"""`thinwire bench growth`, first table: time and memory of an exchange by the number of parameters.

Two processes exchange random gradients over loopback, without a model, in buckets of 25 MB as DDP's hook does. After
each step the same number of bytes is sent by gloo alone; what a step takes beyond that is the overhead: encoding,
decoding and all that the library adds. Memory is that of one process above its memory before gradients were made.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.core import flatten_state
from thinwire.drivers.meter import Meter
from thinwire.drivers.processes import run_ranks
from thinwire.drivers.torch_dist import TorchDist

from .random_buckets import RandomBuckets, make_layers

COMPOSITIONS = ("ef(topk(density=0.01))", "ef(powersgd(rank=4))")
MILLIONS = (10.0, 30.0, 100.0, 250.0)
RANKS = 2
BUCKET_MB = 25.0
WARMUP_STEPS = 3
_MEMORY_COPIES = 4.5  # of the gradients, that a process needs: gradients, residuals, pending residuals, some more
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class SizeRow:
    """Medians over steps of the slower rank; memory of the rank that needs more.

    Attributes:
        overhead_ms_per_mb: (step − transfer) / megabytes of gradients.
        state_share: bytes of residuals and other states / bytes of gradients.
        in_flight_share: (peak memory − memory before − gradients − states) / gradients.
        new_mb_per_step: memory pages that a step got from the system.
    """

    composition: str
    millions: float
    gradient_mb: float
    step_ms: float
    transfer_ms: float
    overhead_ms_per_mb: float
    state_share: float
    in_flight_share: float
    new_mb_per_step: float


def needed_bytes(millions: float) -> float:
    """An estimate of the memory of all processes."""
    return RANKS * _MEMORY_COPIES * 4e6 * millions


def available_bytes() -> float:
    """Memory that the system can give to new processes."""
    return 1024.0 * _read_kilobytes(Path("/proc/meminfo"), "MemAvailable")


def measure(millions: float, composition: str, steps: int, on_progress: Callable[[str], None]) -> SizeRow:
    """One row. steps: timed ones, after WARMUP_STEPS."""
    order = {"numel": round(1e6 * millions), "composition": composition, "steps": steps}
    ranks = run_ranks(
        RANKS, "thinwire_lab.bench.growth_sizes:run_rank", order, on_progress=on_progress, timeout_s=120 + 60 * steps
    )
    return summarize(composition, millions, ranks)


def summarize(composition: str, millions: float, ranks: Sequence[dict[str, Any]]) -> SizeRow:
    """The row, from the figures of all ranks."""
    step_s, transfer_s = (
        statistics.median(map(max, zip(*(rank[what] for rank in ranks), strict=True)))
        for what in ("step_s", "transfer_s")
    )
    gradients = ranks[0]["gradient_bytes"]
    in_flight = [r["peak_bytes"] - r["before_bytes"] - gradients - r["state_bytes"] for r in ranks]
    return SizeRow(
        composition, millions, gradients / 1e6, 1e3 * step_s, 1e3 * transfer_s,
        1e3 * (step_s - transfer_s) / (gradients / 1e6), max(r["state_bytes"] for r in ranks) / gradients,
        max(in_flight) / gradients, max(statistics.median(r["new_bytes"]) for r in ranks) / 1e6,
    )  # fmt: skip


def run_rank(driver: TorchDist, order: dict[str, Any], report: Callable[[Any], None]) -> dict[str, Any]:
    """One rank's part."""
    composition, rank = order["composition"], driver.world.rank
    name = f"{order['numel'] / 1e6:g} M, {composition}"
    with TorchDist() as unordered:  # as `attach` makes it
        small = RandomBuckets(make_layers(10_000), composition, BUCKET_MB, rank)
        small.fill()
        small.run_step(unordered, 0)  # loads kernels and opens connections, which take memory once
        before = read_memory("VmRSS")
        buckets = RandomBuckets(make_layers(order["numel"]), composition, BUCKET_MB, rank)
        before += buckets.noise.nbytes
        unordered.set_meter(Meter())
        for step in range(WARMUP_STEPS):
            report(f"{name}: warm-up step {step + 1} of {WARMUP_STEPS}")
            buckets.fill()
            buckets.run_step(unordered, step)
        peak = read_memory("VmHWM")
        sent = torch.tensor(unordered.meter.sum_by("step")[WARMUP_STEPS - 1].sent_bytes / len(buckets.buckets))
        dist.all_reduce(sent)  # ranks may send different numbers of bytes
        messages = [torch.zeros(round(float(sent) / RANKS), dtype=torch.uint8) for _ in range(2)]
        turns = []
        for step in range(WARMUP_STEPS, WARMUP_STEPS + order["steps"]):
            report(f"{name}: step {step - WARMUP_STEPS + 1} of {order['steps']}")
            turns.append(_time_turn(buckets, unordered, step, messages))
    step_s, transfer_s, new_bytes = zip(*turns, strict=True)
    states = [flatten_state(state) for state in buckets.exchanger.states.values()]
    held = sum(leaf.nbytes for state in states for leaf in state.values() if isinstance(leaf, Tensor))
    return {
        "step_s": step_s, "transfer_s": transfer_s, "new_bytes": new_bytes, "gradient_bytes": buckets.num_bytes,
        "state_bytes": held, "before_bytes": before, "peak_bytes": peak,
    }  # fmt: skip


def _time_turn(
    buckets: RandomBuckets, driver: TorchDist, step: int, messages: Sequence[Tensor]
) -> tuple[float, float, int]:
    """Seconds of a step, seconds of the transfer of as many bytes, and bytes of new memory pages of the step."""
    buckets.fill()
    dist.barrier()
    pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    seconds = buckets.run_step(driver, step)
    pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - pages
    dist.barrier()
    began, other = time.perf_counter(), 1 - driver.world.rank
    for _ in buckets.buckets:
        works = [dist.irecv(messages[0], other), dist.isend(messages[1], other)]
        for work in works:
            if work is not None:
                work.wait()
    return seconds, time.perf_counter() - began, pages * resource.getpagesize()


def read_memory(field: str) -> float:
    """Bytes of this process: "VmRSS" now, "VmHWM" at most so far."""
    return 1024.0 * _read_kilobytes(_STATUS, field)


def _read_kilobytes(file: Path, field: str) -> int:
    for line in file.read_text().splitlines():
        name, _, text = line.partition(":")
        if name == field:
            return int(text.split()[0])
    raise OSError(f"{file} has no field {field}")
