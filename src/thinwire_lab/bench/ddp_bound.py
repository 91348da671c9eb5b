"""A lower bound of a DDP step, modelled from figures that are measured in the same run.

    bound = floor + copies · copy time + exposed transfer
    exposed transfer = latency + max over buckets b of (bytes of b and of all buckets after it / rate − lead of b)

floor: a step that sends nothing. copies: the fewest passes over memory that the method needs, in copies of all
gradients. For ef(topk) one pass reads the gradients and the residual and writes the pending residual (1.5 copies), one
writes the average (0.5). For ef(powersgd): 3.4 for its products and the residual, and 0.5. For two_hop(qsgd): 0.5 to
read the gradients, and 0.5. copy time: of one copy of all gradients in
the hook, while all ranks are in their backward pass. lead: how long before the
last bucket a bucket was ready in the floor's step. For the last bucket it is zero, so its transfer is always exposed;
earlier buckets matter only if they take longer than the backward pass that could hide them. bytes: those that the
method's interface counted, frames included. Without a shaped link only the latency is exposed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from thinwire.core.torch_private import parameters_by_bucket
from thinwire.integrations.ddp_handle import DDPHandle

LEGEND = (
    "bound (modelled): floor + copies * copy time + exposed transfer. copies: passes over memory in copies of the "
    "gradients, 1.5 + 0.5 for ef(topk), 3.4 + 0.5 for ef(powersgd), 0.5 + 0.5 for two_hop(qsgd). copy time: measured "
    "in the row that copies once. exposed transfer: latency + what of bytes / rate the backward pass does not hide, "
    "at least that of the last bucket"
)


@dataclass(frozen=True)
class BucketTraffic:
    """Elements of one of DDP's buckets, and the bytes that this rank sends for it in a step."""

    numel: int
    num_bytes: float


@dataclass(frozen=True)
class LoadFigures:
    """What the bound needs of the machine: medians over the turns of a run, of the slower rank.

    leads: for each bucket of the floor, elements up to it and seconds before the last bucket.
    """

    copy_s: float
    latency_s: float
    leads: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Bound:
    """A modelled step. Never shown in a column of measured figures."""

    step_ms: float
    floors: float
    passes_ms: float
    exposed_ms: float


def time_message() -> float:
    """Seconds of an all-reduce of four bytes, which all ranks start at once."""
    message = torch.zeros(1)
    dist.barrier()
    began = time.perf_counter()
    dist.all_reduce(message)
    return time.perf_counter() - began


def list_bucket_traffic(model: DistributedDataParallel, handle: DDPHandle) -> list[BucketTraffic]:
    """DDP's buckets in their order, with the mean bytes of the steps so far; headers are shared out by bytes."""
    by_layer = handle.driver.meter.sum_by("layer")
    common = by_layer.pop("").sent_bytes if "" in by_layer else 0.0
    total = sum(traffic.sent_bytes for traffic in by_layer.values()) or 1.0
    factor = (1 + common / total) / max(1, handle.hook.step)
    buckets = []
    for parameters in parameters_by_bucket(model):
        rows = [by_layer.get(handle.parameters[parameter]) for parameter in parameters]
        num_bytes = factor * sum(row.sent_bytes for row in rows if row is not None)
        buckets.append(BucketTraffic(sum(parameter.numel() for parameter in parameters), num_bytes))
    return buckets


def summarize_load(ranks: Sequence[dict[str, Any]]) -> LoadFigures:
    """Medians over turns of the slower rank; leads are means over ranks."""
    turns = np.array([rank["load"] for rank in ranks])  # (rank, turn, figure)
    copy_s, latency_s = np.median(turns.max(0), axis=0)
    leads = np.mean([np.median(rank["leads"], axis=0) for rank in ranks], axis=0)  # (bucket, 2)
    return LoadFigures(float(copy_s), float(latency_s), tuple((float(n), float(s)) for n, s in leads))


def compute_exposed_s(buckets: Sequence[BucketTraffic], load: LoadFigures, bytes_per_s: float | None) -> float:
    """Seconds of transfer that nothing hides. See the formula above."""
    if bytes_per_s is None:
        return load.latency_s
    numels, leads = zip(*load.leads, strict=True)
    ready = np.interp(np.cumsum([bucket.numel for bucket in buckets]), numels, leads)
    remaining = np.cumsum([bucket.num_bytes for bucket in buckets][::-1])[::-1] / bytes_per_s
    return load.latency_s + float(np.max(remaining - ready))


def compute_bound(
    floor_s: float,
    copies: float,
    buckets: Sequence[BucketTraffic],
    sent_bytes: float,
    load: LoadFigures,
    bytes_per_s: float | None,
) -> Bound:
    """The bound of one method.

    Args:
        floor_s: step that sends nothing.
        copies: passes over memory, in copies of all gradients.
        buckets: DDP's buckets with their shares of the bytes.
        sent_bytes: by one rank in a step, as the interface counted.
        load: figures of the same run.
        bytes_per_s: rate of the link; None if it is not shaped.
    """
    total = sum(bucket.num_bytes for bucket in buckets) or 1.0
    scaled = [BucketTraffic(bucket.numel, bucket.num_bytes * sent_bytes / total) for bucket in buckets]
    passes_s, exposed_s = copies * load.copy_s, compute_exposed_s(scaled, load, bytes_per_s)
    step_s = floor_s + passes_s + exposed_s
    return Bound(1e3 * step_s, step_s / floor_s, 1e3 * passes_s, 1e3 * exposed_s)
