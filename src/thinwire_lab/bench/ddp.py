"""`thinwire bench ddp`: the time of a DDP step with several communication hooks, beside a step that sends nothing.

Two models with about eleven million parameters on random inputs, one thread per worker. Each turn takes one step with
each method, in rotating order, so that noise of the machine affects all methods. The time of a step is that of the
slower rank. Bytes are those that the interface of a rank counts as sent, frames included.

DDP reads the annotations of a hook, so this module must not import annotations from __future__.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from thinwire.api import attach
from thinwire.core import PeerLostError
from thinwire.drivers.processes import run_ranks
from thinwire.drivers.torch_dist import TorchDist
from thinwire.integrations.ddp_handle import DDPHandle
from thinwire.integrations.step_times import TraceSpan, now

from ..models.gpt import gpt
from ..models.resnet import resnet18
from ..testbed.counters import read_counts
from ..testbed.network import ONE_HOST, network

MODELS = ("resnet18", "gpt")
WARMUP_STEPS = 4
TRACED_STEPS = 5  # after the measured ones, for thinwire's methods
FLOOR = "sends nothing"
TORCH_POWERSGD = "torch PowerSGD 4, one bucket"
ONE_BUCKET_MB = 1e4
_BOOTSTRAP_DRAWS = 2000


@dataclass(frozen=True)
class DDPMethod:
    """How one copy of the model sends its gradients: one of torch's hooks, or a composition of thinwire.

    sends: "nothing", "plain", "fp16", "torch powersgd", or a composition.
    """

    label: str
    sends: str
    bucket_mb: float | None = None  # DDP's default


METHODS = (
    DDPMethod(FLOOR, "nothing"),
    DDPMethod("plain DDP", "plain"),
    DDPMethod("plain DDP, 5 MB buckets", "plain", 5),
    DDPMethod("torch fp16 hook", "fp16"),
    DDPMethod("thinwire ef(topk 1 %)", "ef(topk(density=0.01))"),
    DDPMethod("thinwire ef(powersgd 4)", "ef(powersgd(rank=4))"),
    DDPMethod("thinwire ef(topk 1 %), 5 MB buckets", "ef(topk(density=0.01))", 5),
    DDPMethod("thinwire ef(powersgd 4), 5 MB buckets", "ef(powersgd(rank=4))", 5),
)
THINWIRE_METHODS = tuple(
    method for method in METHODS if method.sends == "nothing" or method.label.startswith("thinwire")
)
ISOLATED_METHODS = (DDPMethod(FLOOR, "nothing"), DDPMethod(TORCH_POWERSGD, "torch powersgd", ONE_BUCKET_MB))


@dataclass(frozen=True)
class Estimate:
    """A median with its 95 % bootstrap interval."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class DDPRow:
    """Figures of one method. floors: step time divided by that of the step of the same turn that sends nothing."""

    method: str
    step_ms: Estimate
    floors: Estimate
    sent_mb: float  # by one rank in a step
    cpu_ms: float  # of one rank's process in a step


@dataclass(frozen=True)
class DDPMeasurement:
    """Rows, and for thinwire's methods the spans of each rank's threads in TRACED_STEPS more steps (see `trace`)."""

    rows: list[DDPRow]
    pieces: dict[str, list[Any]]


def measure(
    model: str, rate: str, steps: int, on_progress: Callable[[str], None] = lambda _: None, baselines: bool = True
) -> DDPMeasurement:
    """Measure all methods on two processes in a network of the given rate.

    Args:
        model: "resnet18" or "gpt".
        rate: of the links, as for the testbed.
        steps: measured steps of each method.
        on_progress: receives progress.
        baselines: also measure plain DDP and torch's hooks. torch's PowerSGD runs in processes of its own, because it
            may abort them; then it has no row.
    """
    rows: list[DDPRow] = []
    pieces: dict[str, list[Any]] = {}
    for methods in (METHODS, ISOLATED_METHODS) if baselines else (THINWIRE_METHODS,):
        order = {"model": model, "rate": rate, "steps": steps, "methods": [vars(method) for method in methods]}
        try:
            with network(2, rate) as net:
                device = net.hosts[0].device
                results = run_ranks(
                    2, "thinwire_lab.bench.ddp:run_rank", order | {"device": device}, on_progress=on_progress,
                    timeout_s=60 + 60 * len(methods) * steps, command_prefixes=net.command_prefixes(),
                )  # fmt: skip
        except PeerLostError:
            if methods is not ISOLATED_METHODS:
                raise
            continue
        found = summarize(methods, [result["figures"] for result in results], shared=rate == ONE_HOST)
        rows += found[1:] if methods is ISOLATED_METHODS else found
        pieces |= {label: [result["pieces"][label] for result in results] for label in results[0]["pieces"]}
    return DDPMeasurement(rows, pieces)


def run_rank(driver: TorchDist, order: dict[str, Any], on_progress: Callable[[Any], None]) -> dict[str, Any]:
    """One rank's part: seconds, CPU seconds and bytes sent by step and method, and the traced spans by method."""
    methods = [DDPMethod(**method) for method in order["methods"]]
    model, draw = make_workload(order["model"], driver.world.rank)
    copies, handles = zip(*(wrap_in_ddp(model(), method) for method in methods), strict=True)
    optimizers = [torch.optim.SGD(copy.parameters(), lr=1e-3, momentum=0.9) for copy in copies]
    rows = []
    for step in range(WARMUP_STEPS + order["steps"]):
        row: list[list[float]] = [[]] * len(methods)
        for turn in range(len(methods)):
            at = (step + turn) % len(methods)
            row[at] = time_step(copies[at], optimizers[at], *draw(), order["device"])
        rows.append(row)
        on_progress(f"{order['model']} at {order['rate']}: step {step + 1} of {WARMUP_STEPS + order['steps']}")
    pieces = {
        method.label: trace_steps(copy, optimizer, handle, draw)
        for method, copy, optimizer, handle in zip(methods, copies, optimizers, handles, strict=True)
        if handle is not None
    }
    return {"figures": rows[WARMUP_STEPS:], "pieces": pieces}


def make_workload(model: str, rank: int) -> tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, Tensor]]]:
    """A function that makes identical models, and one that draws random inputs with classes."""
    numbers = torch.Generator().manual_seed(rank)

    def images() -> tuple[Tensor, Tensor]:
        return torch.randn(8, 3, 32, 32, generator=numbers), torch.randint(10, (8,), generator=numbers)

    def text() -> tuple[Tensor, Tensor]:
        piece = torch.randint(256, (4, 129), generator=numbers)
        return piece[:, :-1], piece[:, 1:]

    def make() -> nn.Module:
        torch.manual_seed(0)
        return resnet18(10) if model == "resnet18" else gpt(256, 128, 6, 384, 6, seed=0)

    return make, images if model == "resnet18" else text


def wrap_in_ddp(model: nn.Module, method: DDPMethod) -> tuple[DistributedDataParallel, DDPHandle | None]:
    """And our handle, where it is ours that sends."""
    copy = DistributedDataParallel(model, bucket_cap_mb=method.bucket_mb)
    if method.sends == "nothing":
        copy.register_comm_hook(None, _send_nothing)
    elif method.sends == "fp16":
        copy.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif method.sends == "torch powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
        copy.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif method.sends != "plain":
        return copy, attach(copy, method.sends, check_weights_every=0)
    return copy, None


def _send_nothing(state: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    answer: torch.futures.Future[Tensor] = torch.futures.Future()
    answer.set_result(bucket.buffer())
    return answer


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


def summarize(methods: Sequence[DDPMethod], results: Sequence[Any], shared: bool) -> list[DDPRow]:
    """Rows from the figures of all ranks. shared: both ranks use one device, so that bytes are counted twice."""
    ranks = np.array(results)  # (rank, step, method, figure)
    seconds, busy, sent = ranks[..., 0].max(0), ranks[..., 1].mean(0), ranks[..., 2].mean(0) / (2 if shared else 1)
    return [
        DDPRow(
            method.label,
            estimate(1e3 * seconds[:, at]),
            estimate(seconds[:, at] / seconds[:, 0]),
            float(np.median(sent[:, at])) / 1e6,
            1e3 * float(np.median(busy[:, at])),
        )
        for at, method in enumerate(methods)
    ]


def estimate(values: np.ndarray[Any, Any]) -> Estimate:
    drawn = np.random.default_rng(0).choice(values, (_BOOTSTRAP_DRAWS, len(values)))
    low, high = np.percentile(np.median(drawn, axis=1), (2.5, 97.5))
    return Estimate(float(np.median(values)), float(low), float(high))
