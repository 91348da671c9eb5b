"""Step times of DDP on real processes for each method, and how they scale with workers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from thinwire import api
from thinwire.drivers.driver import Driver

from ...tasks import make_task
from ...tasks.modules import ModuleLearner, mean_loss
from ...tasks.splits import Split

NO_EXCHANGE, PLAIN_DDP = "no exchange", "DDP"
_WARMUP_STEPS = 40  # steps before timing starts: DDP rebuilds its buckets, controllers make plans
_BY = "lgreco(start=6, every=10000, window=4)"
_BY_TIME = 'lgreco(start=36, every=10000, window=4, objective="time", calibration_steps=32)'
METHODS = {
    NO_EXCHANGE: "",
    PLAIN_DDP: "",
    "TopK": "ef(topk(density=0.05))",
    "L-GreCo TopK": f"ef(adapt(topk(density=0.05), controller={_BY}))",
    "L-GreCo TopK, by time": f"ef(adapt(topk(density=0.05), controller={_BY_TIME}))",
    "global TopK": "ef(flatten(topk(density=0.05)))",
    "PowerSGD": "ef(powersgd(rank=4))",
    "L-GreCo PowerSGD": f"ef(adapt(powersgd(rank=4), controller={_BY}))",
    "mixture": f"ef(adapt(topk(density=0.05), qsgd(bits=4), powersgd(rank=4), controller={_BY}))",
}


def measure_step_times(driver: Driver, argument: Mapping[str, Any], tell: Callable[[Any], None]) -> dict[str, Any]:
    """Return the median seconds, bytes, and encoding and decoding seconds of a step, for each method."""
    task = make_task(argument["task"]["name"], argument["task"]["settings"], argument["data"])
    rows = {}
    for at, (label, composition) in enumerate(argument["methods"].items()):
        tell({"step": at, "steps": len(argument["methods"]), "loss": None, "bytes": 0})
        learner = task.learner(*driver.world, Split.parse("iid"), 1)
        assert isinstance(learner, ModuleLearner)
        rows[label] = _time_method(label, composition, learner, argument["steps"], argument["dense_below"], driver)
    return {"workers": driver.world.size, "rows": rows}


def _time_method(
    label: str, composition: str, learner: ModuleLearner, steps: int, small: int, driver: Driver
) -> dict[str, Any]:
    model = DistributedDataParallel(learner.model, bucket_cap_mb=0.25)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    handle = api.attach(model, composition, dense_below=small, check_weights_every=0) if composition else None
    seconds = []
    for step in range(_WARMUP_STEPS + steps):
        driver.barrier()
        began = time.perf_counter()
        with model.no_sync() if label == NO_EXCHANGE else nullcontext():
            optimizer.zero_grad()
            mean_loss(model, learner.batch(step)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        seconds.append(time.perf_counter() - began)
        if handle is not None and step == _WARMUP_STEPS - 1:
            before = handle.report()
    row: dict[str, Any] = {"seconds": statistics.median(seconds[_WARMUP_STEPS:])}
    if handle is not None:
        after = handle.report()
        row["bytes"] = (after.sent_bytes - before.sent_bytes) / steps
        coding = "encoding and decoding"
        row["coding"] = (after.seconds.get(coding, 0.0) - before.seconds.get(coding, 0.0)) / steps
        row["controller"] = handle.exchanger.controller_report()
        handle.detach()
    return row


def merge_ranks(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the results of the slowest rank, which determine the length of a step."""
    rows = {
        label: row | {key: max(result["rows"][label][key] for result in results) for key in row if key != "controller"}
        for label, row in results[0]["rows"].items()
    }
    return {"workers": results[0]["workers"], "rows": rows}
