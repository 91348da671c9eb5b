"""Step times of DDP on real processes, way by way: what compression costs a step, and how that scales."""

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

ALONE, PLAIN = "no exchange", "DDP"
_SETTLED = 40  # steps before the clock counts: DDP builds its buckets anew, plans are made
_BY = "lgreco(start=6, every=10000, window=4)"
_BY_TIME = 'lgreco(start=36, every=10000, window=4, objective="time", calibration_steps=32)'
WAYS = {
    ALONE: "",
    PLAIN: "",
    "TopK": "ef(topk(density=0.05))",
    "L-GreCo TopK": f"ef(adapt(topk(density=0.05), controller={_BY}))",
    "L-GreCo TopK, by time": f"ef(adapt(topk(density=0.05), controller={_BY_TIME}))",
    "global TopK": "ef(flatten(topk(density=0.05)))",
    "PowerSGD": "ef(powersgd(rank=4))",
    "L-GreCo PowerSGD": f"ef(adapt(powersgd(rank=4), controller={_BY}))",
    "mixture": f"ef(adapt(topk(density=0.05), qsgd(bits=4), powersgd(rank=4), controller={_BY}))",
}


def measured(driver: Driver, argument: Mapping[str, Any], tell: Callable[[Any], None]) -> dict[str, Any]:
    """Median seconds of a step, bytes of a step and seconds of encoding and decoding, for each way."""
    task = make_task(argument["task"]["name"], argument["task"]["settings"], argument["data"])
    rows = {}
    for at, (label, composition) in enumerate(argument["ways"].items()):
        tell({"step": at, "steps": len(argument["ways"]), "loss": None, "bytes": 0})
        learner = task.learner(*driver.world, Split.parse("iid"), 1)
        assert isinstance(learner, ModuleLearner)
        rows[label] = _one_way(label, composition, learner, argument["steps"], argument["dense_below"], driver)
    return {"workers": driver.world.size, "rows": rows}


def _one_way(
    label: str, composition: str, learner: ModuleLearner, steps: int, small: int, driver: Driver
) -> dict[str, Any]:
    model = DistributedDataParallel(learner.model, bucket_cap_mb=0.25)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    handle = api.attach(model, composition, dense_below=small, check_weights_every=0) if composition else None
    seconds = []
    for step in range(_SETTLED + steps):
        driver.barrier()
        began = time.perf_counter()
        with model.no_sync() if label == ALONE else nullcontext():
            optimizer.zero_grad()
            mean_loss(model, learner.batch(step)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        seconds.append(time.perf_counter() - began)
        if handle is not None and step == _SETTLED - 1:
            before = handle.report()
    row: dict[str, Any] = {"seconds": statistics.median(seconds[_SETTLED:])}
    if handle is not None:
        after = handle.report()
        row["bytes"] = (after.sent_bytes - before.sent_bytes) / steps
        coding = "encoding and decoding"
        row["coding"] = (after.seconds.get(coding, 0.0) - before.seconds.get(coding, 0.0)) / steps
        row["choosing"] = handle.exchanger.controller_report()
        handle.detach()
    return row


def slowest(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A step is as long as it is on the slowest rank."""
    rows = {
        label: row | {key: max(result["rows"][label][key] for result in results) for key in row if key != "choosing"}
        for label, row in results[0]["rows"].items()
    }
    return {"workers": results[0]["workers"], "rows": rows}
