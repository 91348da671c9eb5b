"""What worker processes do in the tests of what `attach` and `local` accept, refuse and say."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 (its usual name)

import thinwire
from helpers.ddp_training import EF_TOPK, Net, data, ddp_of, train, weights
from thinwire import TensorSpec, TorchDist
from thinwire.aggregators import GatherMean, Switch
from thinwire.compressors import TopK
from thinwire.core import Contract, Key, Payload
from thinwire.feedback import ErrorFeedback


@dataclass(frozen=True)
class OwnTopK(TopK):
    """A part that no catalog lists."""

    extra: float = 0.5


class Undescribed:
    """A compressor that is no dataclass."""

    inner = TopK(density=0.05)

    def __getattr__(self, name: str) -> Any:
        return getattr(TopK(density=0.05), name)

    def encode(self, tensor: Tensor, key: Key) -> Payload:
        return self.inner.encode(tensor, key)

    def decode(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        return self.inner.decode(payload, spec, key)

    def contract(self, spec: TensorSpec) -> Contract:
        return self.inner.contract(spec)

    def num_bytes(self, spec: TensorSpec) -> float:
        return self.inner.num_bytes(spec)


class Described(Undescribed):
    def __init__(self, density: float) -> None:
        self.density = density

    def signature(self) -> str:
        return f"density={self.density}"


def said(call: Callable[[], object]) -> tuple[str, str]:
    """The error's type and text."""
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return "nothing", ""


def refused(driver: TorchDist, cases: list[dict[str, Any]]) -> tuple[list[tuple[str, str]], int, int]:
    """Errors of `attach`, threads that are left over, and DDP's hooks afterwards."""
    model = ddp_of(driver)
    before = threading.active_count()
    found = [said(partial(thinwire.attach, model, **{"composition": EF_TOPK, **wrong})) for wrong in cases]
    return found, threading.active_count() - before, len(model._comm_hooks)


def quarrel_and_count(driver: TorchDist) -> tuple[set[str], int, int]:
    """Ranks that differ: refused after connections were opened."""
    model = ddp_of(driver)
    before = threading.active_count()
    errors = [said(lambda: thinwire.attach(model, EF_TOPK, seed=driver.world.rank)) for _ in range(5)]
    return {kind for kind, _ in errors}, threading.active_count() - before, len(model._comm_hooks)


def spoil_in_closure(driver: TorchDist, kind: str, spoiled_call: int) -> tuple[bool, bool, bool, int]:
    """The weights after a step whose closure's gradients are bad on one rank, and after a good one."""
    model = ddp_of(driver)
    handle = thinwire.attach(model, EF_TOPK)
    by_kind: dict[str, dict[str, Any]] = {"LBFGS": {"max_iter": 3}, "SGD": {"momentum": 0.9}, "Adam": {}}
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.05, **by_kind[kind])
    calls = [0]

    def closure() -> Tensor:
        optimizer.zero_grad()
        x, y = data(0, 0)
        loss = nn.functional.cross_entropy(model(x), y)
        if calls[0] == spoiled_call and driver.world.rank == 0:
            loss = loss * float("nan")
        calls[0] += 1
        loss.backward()
        return loss.detach() if loss.isfinite() else torch.zeros(())

    start = weights(model)
    optimizer.step(closure=closure)
    after_bad = weights(model)
    finite = all(p.isfinite().all().item() for p in model.parameters())
    optimizer.step(closure)
    return start == after_bad, finite, weights(model) != after_bad, handle.report().skipped_steps


def bare_compressor(driver: TorchDist) -> list[str]:
    """A compressor as an object travels as its text does."""
    digests = []
    for wanted in ("topk(density=0.05)", TopK(density=0.05), {"*": TopK(density=0.05)}):
        model = ddp_of(driver)
        thinwire.attach(model, wanted)
        train(model, driver, 3)
        digests.append(weights(model))
    return digests


def own_parts(driver: TorchDist, rank_differs: bool = False) -> tuple[str, str]:
    """A part outside the catalog: trains, reports, and is compared over ranks."""
    extra = 0.5 + driver.world.rank * rank_differs
    model = ddp_of(driver)
    handle = thinwire.attach(model, ErrorFeedback(GatherMean(OwnTopK(density=0.05, extra=extra))))
    train(model, driver, 2)
    handle.set_composition({"first.*": GatherMean(Described(0.1)), "*": OwnTopK(density=0.1)})
    train(model, driver, 2)
    adapted = "switch(topk(density=0.05), dense(), controller=fixed(default=0))"
    menu = thinwire.parse(adapted)
    assert isinstance(menu, Switch)
    handle.set_composition(ErrorFeedback(Switch((GatherMean(OwnTopK(density=0.05)), *menu.options), menu.controller)))
    train(model, driver, 2)
    return weights(model), str(handle.report())


def own_part_without_signature(driver: TorchDist) -> tuple[str, str]:
    return said(lambda: thinwire.attach(ddp_of(driver), Undescribed()))


def close_at_the_end_of_with(driver: TorchDist) -> tuple[str, int, int, str]:
    """The state of a handle after its `with` block, warnings of closing it again, and whether the model still trains."""
    model = ddp_of(driver)
    with thinwire.attach(model, EF_TOPK) as handle:
        train(model, driver, 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        handle.close()
        handle.detach()
    train(model, driver, 1, start=1)
    return repr(handle), len(caught), handle.report().steps, weights(model)


def two_handles(driver: TorchDist) -> tuple[list[tuple[str, str]], int, list[str], int, tuple[str, str], int]:
    """What an old handle says after a second attach; the new one stays in force."""
    model = ddp_of(driver)
    old = thinwire.attach(model, EF_TOPK)
    train(model, driver, 1)
    new = thinwire.attach(model, EF_TOPK)
    state = new.state_dict()
    calls = (
        old.pause, old.resume, lambda: old.set_composition("dense()"), old.state_dict, lambda: old.load_state_dict(state)
    )  # fmt: skip
    errors = [said(call) for call in calls]
    report = old.report().steps
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        old.detach()
    train(model, driver, 2, start=1)
    steps = new.hook.step
    new.detach()
    new.detach()
    after = said(new.state_dict)
    train(model, driver, 1, start=3)
    return errors, report, [str(w.message) for w in told], steps, after, new.hook.step


def warned(driver: TorchDist, compositions: list[str]) -> list[list[tuple[str, str]]]:
    """What `attach` warns of, by composition."""
    found = []
    for composition in compositions:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            thinwire.attach(ddp_of(driver), composition)
        found.append([(str(w.message), w.filename.rpartition("/")[2]) for w in told])
    return found


def wrapped(driver: TorchDist, kind: str) -> tuple[str, str]:
    """What `attach` says to a model that is no usual DDP model."""
    make: dict[str, Callable[[], Any]] = {
        "plain": Net,
        "compiled plain": lambda: torch.compile(Net()),
        "fsdp2": lambda: sharded(driver),
        "replicate": lambda: replicated(driver),
        "mixed precision": lambda: mixed(driver),
        "in backward": lambda: in_backward(driver),
        "own hook": lambda: hooked(driver),
    }
    return said(lambda: thinwire.attach(make[kind](), EF_TOPK))


def sharded(driver: TorchDist) -> nn.Module:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    model = Net()
    assert driver.group is not None
    fully_shard(model, mesh=DeviceMesh.from_group(driver.group, "cpu"))
    return model


def replicated(driver: TorchDist) -> nn.Module:
    from torch.distributed._composable.replicate import replicate

    return replicate(Net(), process_group=driver.group)


def mixed(driver: TorchDist) -> DDP:
    from torch.nn.parallel.distributed import _MixedPrecision

    return DDP(Net(), process_group=driver.group, mixed_precision=_MixedPrecision(param_dtype=torch.bfloat16))


def in_backward(driver: TorchDist) -> DDP:
    from torch.distributed.optim.apply_optimizer_in_backward import _apply_optimizer_in_backward

    net = Net()
    _apply_optimizer_in_backward(torch.optim.SGD, net.parameters(), {"lr": 0.1})
    return DDP(net, process_group=driver.group)


def hooked(driver: TorchDist) -> DDP:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    model = DDP(Net(), process_group=driver.group)
    model.register_comm_hook(driver.group, allreduce_hook)
    return model


def attach_compiled(driver: TorchDist) -> tuple[str, int]:
    """The compiled module itself is given to `attach`."""
    model = ddp_of(driver)
    compiled: Any = torch.compile(model, backend="eager")
    handle = thinwire.attach(compiled, EF_TOPK)
    train(model, driver, 3, forward=compiled)
    return weights(model), handle.hook.step


def alone_refused(driver: TorchDist) -> tuple[str, str]:
    """One rank is refused; the others learn it from the missing connection."""
    model = ddp_of(driver)
    wanted = "ef(tpok(density=0.05))" if driver.world.rank else EF_TOPK
    return said(lambda: thinwire.attach(model, wanted, timeout_s=1.0))


def said_of_own_parts(driver: TorchDist) -> tuple[str, str]:
    return said(lambda: own_parts(driver, rank_differs=True))
