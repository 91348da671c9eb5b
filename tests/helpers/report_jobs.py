"""What worker processes do in the tests of what handles tell: reports, warnings, advice; and complex layers."""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 (its usual name)

import thinwire
from helpers.ddp_training import EF_TOPK, Composition, Net, data, ddp_of, train, weights
from helpers.local_jobs import local, make, named, teach
from thinwire import TorchDist
from thinwire.compressors import TopK
from thinwire.integrations.ddp_handle import DDPHandle
from thinwire.integrations.local_handle import LocalHandle
from thinwire.integrations.report import TrafficReport

PATTERNS = {"first*": EF_TOPK, "second*": "ef(powersgd(rank=2))", "last.weight": "dense()"}


def told(record: list[warnings.WarningMessage]) -> list[str]:
    return [str(each.message) for each in record if "thinwire" in str(each.message) or "attach" in str(each.message)]


def reports_and_reprs(driver: TorchDist) -> tuple[dict[str, tuple[str, str]], TrafficReport]:
    """Of an attached handle through its life."""
    model = ddp_of(driver)
    handle = thinwire.attach(model, PATTERNS)
    seen = {"before": (str(handle.report()), repr(handle))}
    train(model, driver, 1)
    seen["one step"] = str(handle.report()), repr(handle)
    handle.pause()
    seen["paused"] = str(handle.report()), repr(handle)
    handle.detach()
    seen["detached"] = str(handle.report()), repr(handle)
    return seen, handle.report()


def report_of(driver: TorchDist, composition: Composition, steps: int = 2) -> str:
    model = ddp_of(driver)
    handle = thinwire.attach(model, composition)
    train(model, driver, steps)
    return str(handle.report())


def metrics_of(driver: TorchDist, composition: Composition, counts: tuple[int, ...]) -> list[Any]:
    """The metrics after each number of further steps, then the last report."""
    model = ddp_of(driver)
    handle = thinwire.attach(model, composition)
    found: list[Any] = []
    for steps in counts:
        train(model, driver, steps)
        found.append(handle.metrics())
    return [*found, handle.report()]


def metrics_of_local(driver: TorchDist) -> dict[str, float]:
    model, optimizer = make()
    with local(driver, model, optimizer, sync_every=2, composition=EF_TOPK) as handle:
        teach(model, optimizer, driver.world.rank, 4)
        return handle.metrics()


def report_of_local(driver: TorchDist) -> tuple[str, str, str]:
    model, optimizer = make()
    options = {"sync_every": 2, "composition": EF_TOPK, "optimizer_state": "uniform(bits=4)"}
    with local(driver, model, optimizer, **options) as handle:
        teach(model, optimizer, driver.world.rank, 2)
        opened = repr(handle)
        report = handle.report()
    return str(report), opened, repr(handle)


def report_of_moments(driver: TorchDist, with_names: bool) -> tuple[str, str, Mapping[str, float]]:
    model, _ = make()
    parameters = model.named_parameters() if with_names else model.parameters()
    optimizer = torch.optim.AdamW(parameters, lr=0.01)
    teach(model, optimizer, driver.world.rank, 1)
    with thinwire.moments.average(optimizer, "uniform(bits=4)", group=driver.group, timeout_s=20.0) as handle:
        return str(handle.report()), repr(handle), handle.report().by_layer


@dataclass(frozen=True)
class OwnTopK(TopK):
    """A part that is in no catalog."""


def forget_scalers() -> None:
    """Those of earlier jobs of this process, which something may still hold."""
    for each in gc.get_objects():
        if issubclass(type(each), torch.amp.GradScaler):
            each._enabled = False


def scale_too_large(driver: TorchDist, given: bool, init_scale: float) -> tuple[str, str, list[str]] | None:
    """float16 gradients overflow under this loss scale at every step."""
    forget_scalers()
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale)
    model = ddp_of(driver)
    handle = thinwire.attach(model, EF_TOPK, max_bad_steps=3, scaler=scaler if given else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        for step in range(4):
            x, y = data(step, driver.world.rank)
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                output = model(x)
            loss = nn.functional.cross_entropy(output.float(), y) * 1e30
            try:
                scaler.scale(loss).backward()
            except thinwire.ThinwireError as error:
                handle.detach()
                return type(error).__name__, str(error), told(record)
            scaler.step(optimizer)
            scaler.update()
    return None


def bad_without_scaler(driver: TorchDist, autocast: bool, dtype: torch.dtype) -> str | None:
    forget_scalers()
    model = ddp_of(driver, Net(dtype=dtype))
    thinwire.attach(model, EF_TOPK, max_bad_steps=2)
    for step in range(3):
        x, y = data(step, driver.world.rank, dtype)
        with torch.autocast("cpu", dtype=torch.float16, enabled=autocast):
            output = model(x * float("nan"))
        try:
            nn.functional.cross_entropy(output.float(), y).backward()
        except thinwire.ThinwireError as error:
            return str(error)
    return None


def bad_rounds_under_autocast(driver: TorchDist) -> str | None:
    forget_scalers()
    model, optimizer = make()
    with local(driver, model, optimizer, sync_every=1, max_bad_rounds=2) as handle:
        del handle
        for step in range(4):
            x, y = data(step, driver.world.rank)
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                output = model(x * float("nan"))
            nn.functional.cross_entropy(output.float(), y).backward()
            try:
                optimizer.step()
            except thinwire.ThinwireError as error:
                return str(error)
    return None


def as_if_on_a_device(handle: DDPHandle | LocalHandle) -> None:
    handle.layers = [replace(layer, device=torch.device("cuda", 0)) for layer in handle.layers]


def copies(driver: TorchDist) -> tuple[list[str], list[str]]:
    """What `attach` and `local` say of layers on a device, over three steps."""
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        model = ddp_of(driver)
        as_if_on_a_device(thinwire.attach(model, "dense()"))
        train(model, driver, 3)
        attached = told(record)
        record.clear()
        module, optimizer = make()
        with local(driver, module, optimizer, sync_every=1) as handle:
            as_if_on_a_device(handle)
            teach(module, optimizer, driver.world.rank, 3)
        return attached, [str(each.message) for each in record if "local" in str(each.message)]


def unfreeze(
    driver: TorchDist, on_divergence: str, everywhere: bool = True
) -> tuple[str, str, list[str], list[str]] | tuple[int, str, list[str], list[str]]:
    """A layer is unfrozen after DDP has wrapped the model, and learns on each rank alone."""
    net = Net()
    net.second.requires_grad_(False)
    model = ddp_of(driver, net)
    handle = thinwire.attach(model, EF_TOPK, check_weights_every=2, on_divergence=on_divergence)
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        train(model, driver, 2)
        before = told(record)
        if everywhere or driver.world.rank == 0:
            net.second.requires_grad_(True)
        try:
            train(model, driver, 6, start=2)
        except thinwire.ThinwireError as error:
            return type(error).__name__, str(error), before, told(record)
    return handle.report().resynced_tensors, weights(model), before, told(record)


def ignore(driver: TorchDist) -> list[str]:
    """DDP was told to ignore a layer."""
    net = Net()
    DDP._set_params_and_buffers_to_ignore_for_model(net, ["second.weight", "second.bias"])
    model = ddp_of(driver, net)
    thinwire.attach(model, EF_TOPK, check_weights_every=2)
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        train(model, driver, 6)
    return told(record)


class Spectral(nn.Module):
    """A complex matrix and a complex vector between real layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 40)
        self.modes = nn.Parameter(torch.randn(40, 40, dtype=torch.complex64) / 40)
        self.shift = nn.Parameter(torch.zeros(40, dtype=torch.complex64))
        self.last = nn.Linear(40, 4)
        self.register_buffer("phase", torch.zeros(40, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        z = self.first(x.real).to(torch.complex64) @ self.modes + self.shift
        output: Tensor = self.last(torch.tanh(z.real + z.imag.square()))
        return output


def spectral() -> Spectral:
    torch.manual_seed(7)
    return Spectral()


def complex_ddp(
    driver: TorchDist,
    composition: Composition,
    ddp: dict[str, Any] | None = None,
    attached: bool = True,
    steps: int = 5,
) -> tuple[dict[str, Tensor], str]:
    """Weights and report after a few steps."""
    model = ddp_of(driver, spectral(), **(ddp or {}))
    handle = thinwire.attach(model, composition, check_weights_every=2) if attached else None
    train(model, driver, steps)
    report = "" if handle is None else str(handle.report())
    return {n: p.detach().clone() for n, p in model.module.named_parameters()}, report


def complex_bad_step(driver: TorchDist) -> tuple[bool, bool, bool, int]:
    model = ddp_of(driver, spectral())
    handle = thinwire.attach(model, EF_TOPK)
    train(model, driver, 2)
    before, start = weights(model), handle.exchanger.states["modes"].residual.clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = data(2, driver.world.rank)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    (loss + (model.module.modes.imag.sum() * float("nan") if driver.world.rank == 1 else 0.0)).backward()
    nan = bool(model.module.modes.grad.isnan().all())
    optimizer.step()
    kept = torch.equal(start, handle.exchanger.states["modes"].residual)
    return nan, before == weights(model), kept, handle.report().skipped_steps


def complex_resume(driver: TorchDist, steps: int = 6, stop: int = 3) -> bool:
    def build() -> tuple[DDP, DDPHandle]:
        model = ddp_of(driver, spectral())
        return model, thinwire.attach(model, EF_TOPK)

    model, _ = build()
    train(model, driver, steps)
    straight = weights(model)
    model, handle = build()
    train(model, driver, stop)
    saved = copy.deepcopy((model.module.state_dict(), handle.state_dict()))
    model, handle = build()
    model.module.load_state_dict(saved[0])
    handle.load_state_dict(saved[1])
    train(model, driver, steps - stop, start=stop)
    return straight == weights(model)


def complex_resync(driver: TorchDist) -> tuple[str, int]:
    model = ddp_of(driver, spectral())
    handle = thinwire.attach(model, EF_TOPK, check_weights_every=2, on_divergence="resync")
    train(model, driver, 1)
    if driver.world.rank == 1:
        with torch.no_grad():
            model.module.modes[3, 4] += 1e-3j
    train(model, driver, 3, start=1)
    return weights(model), handle.report().resynced_tensors


def complex_local(driver: TorchDist, options: dict[str, Any]) -> tuple[str, list[float], bool, str, Any]:
    """Digest after a full average, whether it was of the same weights in the parameter itself, and the report."""
    model, optimizer = make(Spectral)
    with torch.no_grad():
        model.phase += driver.world.rank * 1j
    start = model.modes.detach().clone()
    with local(driver, model, optimizer, **options) as handle:
        losses = teach(model, optimizer, driver.world.rank, 12)
        handle.full_average()
        return named(model), losses, bool((model.modes != start).any()), str(handle.report()), model.phase.clone()
