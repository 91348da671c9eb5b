"""What worker processes do in the tests of steps that fail and of handles that are used after their end."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

import thinwire
from helpers.ddp_training import EF_TOPK, Net, data, ddp_of, train
from thinwire import TensorSpec, TorchDist
from thinwire.core import Context, Key, Program, Reduced, flatten_state
from thinwire.drivers.single import SingleRank
from thinwire.integrations.ddp_handle import DDPHandle

Snapshot = tuple[dict[str, Any], tuple[int, int, dict[str, int]]]


@dataclass(frozen=True)
class FailsOnce:
    """An aggregator that raises, once it is armed, before or after its request."""

    inner: Any
    when: str

    def init(self, spec: TensorSpec, key: Key) -> Any:
        return self.inner.init(spec, key)

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: Any, ctx: Context) -> Program[Reduced[Any]]:
        if self.when == "before":
            raise ZeroDivisionError("this layer fails")
        reduced: Reduced[Any] = yield from self.inner.reduce(tensor, spec, state, ctx)
        if self.when == "after":
            raise ZeroDivisionError("this layer fails")
        return reduced


def snapshot(handle: DDPHandle) -> Snapshot:
    """Memories, plan, step and counters, as bytes that can be compared."""
    exchanger = handle.exchanger
    memory = {name: flatten_state(state) for name, state in exchanger.states.items()}
    tensors = {
        f"{name}/{key}": value.clone() if isinstance(value, torch.Tensor) else value
        for name, flat in memory.items()
        for key, value in flat.items()
    }
    return tensors, (handle.hook.step, exchanger.skipped_steps, dict(exchanger.plan))


def same(a: Snapshot, b: Snapshot) -> bool:
    return a[1] == b[1] and all(
        torch.equal(x, b[0][name]) if isinstance(x, torch.Tensor) else x == b[0][name] for name, x in a[0].items()
    )


def fail_one_bucket(driver: TorchDist, when: str) -> tuple[str, bool, bool]:
    """(type of the error, whether nothing was committed, whether the optimizer leaves the weights alone)."""
    model = ddp_of(driver, bucket_cap_mb=0.002)
    handle = thinwire.attach(model, EF_TOPK, dense_below=0)
    train(model, driver, 3)
    before = snapshot(handle)
    aggregators = cast("dict[str, Any]", handle.exchanger.aggregators)
    aggregators["second.weight"] = FailsOnce(aggregators["second.weight"], when)
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    try:
        train(model, driver, 1, start=3)
        raised = ""
    except ZeroDivisionError as error:
        raised = str(error)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    untouched = all(torch.equal(p, weights[name]) for name, p in model.named_parameters())
    state = handle.state_dict(gather=False)[f"rank{driver.world.rank}"]
    return raised, same(before, snapshot(handle)) and state["step"] == 3, untouched


def interrupt_backward(driver: TorchDist) -> bool:
    """Backward ends by an exception of the user's own, after some buckets: is what was pending committed by saving?"""
    model = ddp_of(driver, bucket_cap_mb=0.002)
    handle = thinwire.attach(model, EF_TOPK, dense_below=0)
    train(model, driver, 3)
    before = snapshot(handle)

    def fail(gradient: Tensor) -> Tensor:
        raise KeyboardInterrupt

    removable = model.module.first.weight.register_hook(fail)  # the last gradient of all
    with suppress(KeyboardInterrupt):
        train(model, driver, 1, start=3)
    removable.remove()
    handle.state_dict(gather=False)
    return same(before, snapshot(handle))


def use_after_end(driver: TorchDist, kind: str) -> dict[str, tuple[str, float]]:
    """What each method of a closed handle or driver raises, and how long that took."""
    calls: dict[str, Callable[[], object]]
    handle: Any
    if kind == "attach":
        handle = thinwire.attach(ddp_of(driver), EF_TOPK)
        handle.detach()
        calls = {
            "state_dict": handle.state_dict,
            "change": lambda: handle.set_composition("dense()"),
            "load_state_dict": lambda: handle.load_state_dict({"world_size": 1, "rank0": {"step": 0}}),
        }
    elif kind == "local":
        net = Net()
        handle = thinwire.local(net, torch.optim.SGD(net.parameters(), lr=0.1), sync_every=2, group=driver.group)
        handle.close()
        x, y = data(0, driver.world.rank)
        torch.nn.functional.cross_entropy(net(x), y).backward()
        calls = {
            "state_dict": handle.state_dict,
            "full_average": handle.full_average,
            "consensus": handle.consensus,
            "after_step": handle.after_step,
        }
    elif kind == "moments":
        net = Net()
        handle = thinwire.moments.average(torch.optim.Adam(net.parameters()), now=False, group=driver.group)
        handle.close()
        calls = {"average": handle.average, "state_dict": handle.state_dict}
    else:
        closed = SingleRank() if kind == "alone" else thinwire.TorchDist(driver.group)
        closed.close()
        closed.close()  # twice does no harm
        calls = {
            "run": lambda: closed.run(nothing()),
            "submit": lambda: closed.submit(nothing()),
            "barrier": closed.barrier,
        }
    return {name: how_it_fails(call) for name, call in calls.items()}


def nothing() -> Program[None]:
    return
    yield


def how_it_fails(call: Callable[[], object]) -> tuple[str, float]:
    began = time.monotonic()
    try:
        call()
    except Exception as error:
        return type(error).__name__, time.monotonic() - began
    return "", time.monotonic() - began
