"""`thinwire bench ddp`: the time of a DDP step with several communication hooks, beside a step that sends nothing.

Two models with about eleven million parameters on random inputs, one thread per worker. Each turn takes one step with
each method, in rotating order, so that noise of the machine affects all methods. The time of a step is that of the
slower rank. Bytes are those that the interface of a rank counts as sent, frames included.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from thinwire.core import PeerLostError
from thinwire.drivers.processes import run_ranks
from thinwire.drivers.torch_dist import TorchDist
from thinwire.integrations.ddp_handle import DDPHandle
from thinwire.integrations.step_times import TraceSpan, now

from ..models.gpt import gpt
from ..models.resnet import resnet18
from ..testbed.counters import read_counts
from ..testbed.network import ONE_HOST, network, rate_bits
from .ddp_bound import BucketTraffic, compute_bound, list_bucket_traffic, summarize_load, time_message
from .ddp_methods import TORCH_POWERSGD, DDPMethod, FloorHook, wrap_in_ddp
from .ddp_summary import DDPRow, summarize

MODELS = ("resnet18", "gpt")
GPT_BLOCKS = 6
WARMUP_STEPS = 4
TRACED_STEPS = 5  # after the measured ones, for thinwire's methods


@dataclass(frozen=True)
class DDPMeasurement:
    """Rows, and for thinwire's methods the spans of each rank's threads in TRACED_STEPS more steps (see `trace`)."""

    rows: list[DDPRow]
    pieces: dict[str, list[Any]]


def measure(
    model: str,
    rate: str,
    steps: int,
    groups: Sequence[Sequence[DDPMethod]],
    on_progress: Callable[[str], None] = lambda _: None,
) -> DDPMeasurement:
    """Measure groups of methods on two processes in a network of the given rate, each group in new processes.

    Args:
        model: "resnet18" or "gpt".
        rate: of the links, as for the testbed.
        steps: measured steps of each method.
        groups: see `select_methods`. Rows of the floor are those of the first group. torch's PowerSGD may abort its
            processes; then it has no row.
        on_progress: receives progress.
    """
    rows: list[DDPRow] = []
    pieces: dict[str, list[Any]] = {}
    for methods in groups:
        try:
            results = _run_group(model, rate, steps, methods, on_progress)
        except PeerLostError:
            if not any(method.label == TORCH_POWERSGD for method in methods):
                raise
            continue
        found = summarize(methods, [result["figures"] for result in results], shared=rate == ONE_HOST)
        found = add_bounds(methods, found, results, rate)
        rows += found[1:] if rows else found
        pieces |= {label: [result["pieces"][label] for result in results] for label in results[0]["pieces"]}
    return DDPMeasurement(rows, pieces)


def _run_group(
    model: str, rate: str, steps: int, methods: Sequence[DDPMethod], on_progress: Callable[[str], None]
) -> list[Any]:
    order = {"model": model, "rate": rate, "steps": steps, "methods": [vars(method) for method in methods]}
    with network(2, rate) as net:
        return run_ranks(
            2, "thinwire_lab.bench.ddp:run_rank", order | {"device": net.hosts[0].device}, on_progress=on_progress,
            timeout_s=60 + 60 * len(methods) * steps, command_prefixes=net.command_prefixes(),
        )  # fmt: skip


def add_bounds(
    methods: Sequence[DDPMethod], rows: Sequence[DDPRow], results: Sequence[dict[str, Any]], rate: str
) -> list[DDPRow]:
    """The rows with the modelled bounds of the methods that have one."""
    load, bits = summarize_load(results), rate_bits(rate)
    bounded = []
    for method, row in zip(methods, rows, strict=True):
        if method.copies is not None and (buckets := results[0]["buckets"].get(method.label)):
            traffic = [BucketTraffic(*bucket) for bucket in buckets]
            floor_s, sent = rows[0].step_ms.median / 1e3, 1e6 * row.sent_mb
            row = replace(row, bound=compute_bound(floor_s, method.copies, traffic, sent, load, bits and bits / 8))
        bounded.append(row)
    return bounded


def run_rank(driver: TorchDist, order: dict[str, Any], on_progress: Callable[[Any], None]) -> dict[str, Any]:
    """One rank's part. The first method is the floor, the second the copy, if bounds are to be computed.

    Returns:
        figures: seconds, CPU seconds and bytes sent by step and method; load and leads: see `LoadFigures`, by step;
        buckets: see `list_bucket_traffic`, by method; pieces: the traced spans, by method.
    """
    methods = [DDPMethod(**method) for method in order["methods"]]
    model, draw = make_workload(order["model"], driver.world.rank, order.get("blocks", GPT_BLOCKS))
    copies, handles = zip(*(wrap_in_ddp(model(), method) for method in methods), strict=True)
    optimizers = [torch.optim.SGD(copy.parameters(), lr=1e-3, momentum=0.9) for copy in copies]
    floor, copying = (handle if isinstance(handle, FloorHook) else None for handle in handles[:2])
    rows, load, leads = [], [], []
    for step in range(WARMUP_STEPS + order["steps"]):
        row: list[list[float]] = [[]] * len(methods)
        for turn in range(len(methods)):
            at = (step + turn) % len(methods)
            row[at] = time_step(copies[at], optimizers[at], *draw(), order["device"])
        rows.append(row)
        load.append((copying.copy_s if copying else 0.0, time_message()))
        leads.append(floor.leads() if floor else [])
        on_progress(f"{order['model']} at {order['rate']}: step {step + 1} of {WARMUP_STEPS + order['steps']}")
    ours = [at for at, handle in enumerate(handles) if isinstance(handle, DDPHandle)]
    return {
        "figures": rows[WARMUP_STEPS:], "load": load[WARMUP_STEPS:], "leads": leads[WARMUP_STEPS:],
        "buckets": {
            methods[at].label: [[b.numel, b.num_bytes] for b in list_bucket_traffic(copies[at], handles[at])]
            for at in ours
        },
        "pieces": {methods[at].label: trace_steps(copies[at], optimizers[at], handles[at], draw) for at in ours},
    }  # fmt: skip


def make_workload(
    model: str, rank: int, blocks: int = GPT_BLOCKS
) -> tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, Tensor]]]:
    """A function that makes identical models, and one that draws random inputs with classes; blocks: of the GPT."""
    numbers = torch.Generator().manual_seed(rank)

    def images() -> tuple[Tensor, Tensor]:
        return torch.randn(8, 3, 32, 32, generator=numbers), torch.randint(10, (8,), generator=numbers)

    def text() -> tuple[Tensor, Tensor]:
        piece = torch.randint(256, (4, 129), generator=numbers)
        return piece[:, :-1], piece[:, 1:]

    def make() -> nn.Module:
        torch.manual_seed(0)
        return resnet18(10) if model == "resnet18" else gpt(256, 128, blocks, 384, 6, seed=0)

    return make, images if model == "resnet18" else text


def time_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, classes: Tensor, device: str
) -> list[float]:
    """Seconds, CPU seconds and bytes sent of one step; all ranks meet at barriers before and after."""
    dist.barrier()
    before = read_counts(device)
    dist.barrier()
    began, cpu = time.perf_counter(), time.process_time()
    optimizer.zero_grad()
    cross_entropy(model(inputs).flatten(0, -2), classes.flatten()).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    seconds, busy = time.perf_counter() - began, time.process_time() - cpu
    dist.barrier()
    return [seconds, busy, read_counts(device).since(before).sent_bytes]


def trace_steps(
    model: nn.Module, optimizer: torch.optim.Optimizer, handle: DDPHandle, draw: Callable[[], tuple[Tensor, Tensor]]
) -> list[TraceSpan]:
    """Spans of the threads of this rank in TRACED_STEPS steps."""
    pieces = handle.hook.times.spans = []

    def add(what: str, began: float) -> float:
        pieces.append(TraceSpan(what, "training", began, now()))
        return now()

    for _ in range(TRACED_STEPS):
        inputs, classes = draw()
        dist.barrier()
        began = now()
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs).flatten(0, -2), classes.flatten())
        began = add("forward", began)
        loss.backward()  # type: ignore[no-untyped-call]
        began = add("backward", began)
        optimizer.step()
        add("optimizer", began)
    handle.hook.times.spans = None
    return pieces
