"""A DDP step with each way of sending, beside the step that sends nothing; measured in turns in one run.

Two models of about eleven million parameters on drawn inputs, one thread a worker: every turn takes one step with each
method, in an order that rotates, so that what disturbs the machine disturbs all alike. A step's time is that of the
slower rank. Bytes are the interface's own count of what this rank sent, frames included.

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
TRACED_STEPS = 5  # steps after the measured ones, of our methods
FLOOR = "sends nothing"
TORCH_POWERSGD = "torch PowerSGD 4, one bucket"
ONE_BUCKET_MB = 1e4
_BOOTSTRAP_DRAWS = 2000  # of the bootstrap


@dataclass(frozen=True)
class DDPMethod:
    """How one copy of the model sends its gradients: torch's own hook, or a composition of ours."""

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
THINWIRE_METHODS = tuple(way for way in METHODS if way.sends == "nothing" or way.label.startswith("thinwire"))
ISOLATED_METHODS = (DDPMethod(FLOOR, "nothing"), DDPMethod(TORCH_POWERSGD, "torch powersgd", ONE_BUCKET_MB))


@dataclass(frozen=True)
class Estimate:
    """A median with its 95 % bootstrap interval."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class DDPRow:
    """One way of sending; `floors` are steps of the same turn that send nothing."""

    method: str
    step_ms: Estimate
    floors: Estimate
    sent_mb: float  # by one rank in a step
    cpu_ms: float  # of one rank's process in a step


@dataclass(frozen=True)
class DDPMeasurement:
    """Rows, and for our methods what each rank's threads did in TRACED more steps, see `trace`."""

    rows: list[DDPRow]
    pieces: dict[str, list[Any]]


def measure(
    model: str, rate: str, steps: int, tell: Callable[[str], None] = lambda _: None, peers: bool = True
) -> DDPMeasurement:
    """Every way on two real processes, in a network of their own; without `peers`, the floor and our own alone.

    torch's PowerSGD has processes of its own, because it may abort them; then it has no row.
    """
    rows: list[DDPRow] = []
    pieces: dict[str, list[Any]] = {}
    for ways in (METHODS, ISOLATED_METHODS) if peers else (THINWIRE_METHODS,):
        order = {"model": model, "rate": rate, "steps": steps, "ways": [vars(way) for way in ways]}
        try:
            with network(2, rate) as net:
                device = net.hosts[0].device
                results = run_ranks(
                    2, "thinwire_lab.bench.ddp:run_rank", order | {"device": device}, on_progress=tell,
                    timeout_s=60 + 60 * len(ways) * steps, command_prefixes=net.command_prefixes(),
                )  # fmt: skip
        except PeerLostError:
            if ways is not ISOLATED_METHODS:
                raise
            continue
        found = summarize(ways, [result["figures"] for result in results], shared=rate == ONE_HOST)
        rows += found[1:] if ways is ISOLATED_METHODS else found
        pieces |= {label: [result["pieces"][label] for result in results] for label in results[0]["pieces"]}
    return DDPMeasurement(rows, pieces)


def run_rank(driver: TorchDist, order: dict[str, Any], tell: Callable[[Any], None]) -> dict[str, Any]:
    """One rank's part: seconds, CPU seconds and bytes sent, by step and way; and pieces of time by way."""
    ways = [DDPMethod(**way) for way in order["ways"]]
    model, draw = make_workload(order["model"], driver.world.rank)
    copies, handles = zip(*(wrap_in_ddp(model(), way) for way in ways), strict=True)
    optimizers = [torch.optim.SGD(copy.parameters(), lr=1e-3, momentum=0.9) for copy in copies]
    rows = []
    for step in range(WARMUP_STEPS + order["steps"]):
        row: list[list[float]] = [[]] * len(ways)
        for turn in range(len(ways)):
            at = (step + turn) % len(ways)
            row[at] = time_step(copies[at], optimizers[at], *draw(), order["device"])
        rows.append(row)
        tell(f"{order['model']} at {order['rate']}: step {step + 1} of {WARMUP_STEPS + order['steps']}")
    pieces = {
        way.label: trace_steps(copy, optimizer, handle, draw)
        for way, copy, optimizer, handle in zip(ways, copies, optimizers, handles, strict=True)
        if handle is not None
    }
    return {"figures": rows[WARMUP_STEPS:], "pieces": pieces}


def make_workload(model: str, rank: int) -> tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, Tensor]]]:
    """A maker of equal models, and of drawn inputs with their classes."""
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


def wrap_in_ddp(model: nn.Module, way: DDPMethod) -> tuple[DistributedDataParallel, DDPHandle | None]:
    """And our handle, where it is ours that sends."""
    copy = DistributedDataParallel(model, bucket_cap_mb=way.bucket_mb)
    if way.sends == "nothing":
        copy.register_comm_hook(None, _send_nothing)
    elif way.sends == "fp16":
        copy.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif way.sends == "torch powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
        copy.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif way.sends != "plain":
        return copy, attach(copy, way.sends, check_weights_every=0)
    return copy, None


def _send_nothing(state: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    answer: torch.futures.Future[Tensor] = torch.futures.Future()
    answer.set_result(bucket.buffer())
    return answer


def time_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, classes: Tensor, device: str
) -> list[float]:
    """Seconds, CPU seconds, bytes sent; between meetings of all ranks."""
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
    """What the threads of this rank do in a few steps."""
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


def summarize(ways: Sequence[DDPMethod], results: Sequence[Any], shared: bool) -> list[DDPRow]:
    """From each rank's figures; `shared`: both ranks' bytes pass one device."""
    ranks = np.array(results)  # (rank, step, way, figure)
    seconds, busy, sent = ranks[..., 0].max(0), ranks[..., 1].mean(0), ranks[..., 2].mean(0) / (2 if shared else 1)
    return [
        DDPRow(
            way.label,
            estimate(1e3 * seconds[:, at]),
            estimate(seconds[:, at] / seconds[:, 0]),
            float(np.median(sent[:, at])) / 1e6,
            1e3 * float(np.median(busy[:, at])),
        )
        for at, way in enumerate(ways)
    ]


def estimate(values: np.ndarray[Any, Any]) -> Estimate:
    drawn = np.random.default_rng(0).choice(values, (_BOOTSTRAP_DRAWS, len(values)))
    low, high = np.percentile(np.median(drawn, axis=1), (2.5, 97.5))
    return Estimate(float(np.median(values)), float(low), float(high))
