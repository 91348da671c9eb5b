"""What worker processes do in the tests of `attach`: DDP models in every situation a training script may bring about."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 (its usual name)

import thinwire
from helpers.ddp_training import EF_TOPK, Composition, Net, data, ddp_of, train, weights
from thinwire import TorchDist
from thinwire.integrations.ddp_handle import DDPHandle


def plain_and_attached(
    driver: TorchDist, composition: Composition, steps: int = 6, **options: Any
) -> tuple[list[dict[str, Tensor]], float]:
    """The weights after a few steps, with DDP's own average and with ours."""
    results = []
    for attached in (False, True):
        model = ddp_of(driver, **options)
        if attached:
            handle = thinwire.attach(model, composition)
        train(model, driver, steps)
        results.append({name: p.detach().clone() for name, p in model.module.named_parameters()})
    return results, handle.report().saving


def trained(
    driver: TorchDist,
    composition: Composition = EF_TOPK,
    steps: int = 6,
    net: dict[str, Any] | None = None,
    ddp: dict[str, Any] | None = None,
    attach: dict[str, Any] | None = None,
    **forward_options: Any,
) -> tuple[str, float, list[float], str]:
    """Digest of the weights and the report's figures."""
    model = ddp_of(driver, Net(**net) if net else None, **(ddp or {}))
    handle = thinwire.attach(model, composition, **(attach or {}))
    losses = train(model, driver, steps, **forward_options)
    report = handle.report()
    return weights(model), report.sent_bytes, losses, str(report)


def accumulate(driver: TorchDist, micro: int) -> tuple[str, int]:
    """`micro` backward passes without synchronisation, then one with it: one step of the handle."""
    model = ddp_of(driver)
    handle = thinwire.attach(model, EF_TOPK)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        for part in range(micro):
            x, y = data(10 * step + part, driver.world.rank)
            if part < micro - 1:
                with model.no_sync():
                    nn.functional.cross_entropy(model(x), y).backward()
            else:
                nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return weights(model), handle.hook.step


def leave_unused(driver: TorchDist, composition: Composition) -> tuple[dict[str, bool], str]:
    """A layer that is unused in some steps: its residual waits, and nothing of it is lost."""
    model = ddp_of(driver, find_unused_parameters=True)
    handle = thinwire.attach(model, composition)
    train(model, driver, 3)
    before = {n: s.residual.clone() for n, s in handle.exchanger.states.items() if hasattr(s, "residual")}
    grads = {n: p.grad for n, p in model.module.named_parameters()}
    train(model, driver, 2, start=3, skip=True)
    after = {n: s.residual for n, s in handle.exchanger.states.items() if hasattr(s, "residual")}
    kept = {n: torch.equal(before[n], after[n]) for n in before}
    train(model, driver, 2, start=5)
    del grads
    return kept, weights(model)


def embed(driver: TorchDist) -> tuple[list[dict[str, Tensor]], Mapping[str, float]]:
    """Rows of an embedding travel as rows."""

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(500, 16, sparse=True)
            self.last = nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.last(self.embed(x).mean(1))
            return output

    results = []
    for attached in (False, True):
        torch.manual_seed(3)
        model = ddp_of(driver, Words())
        if attached:
            handle = thinwire.attach(model, EF_TOPK)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for step in range(4):
            generator = torch.Generator().manual_seed(100 * step + driver.world.rank)
            x = torch.randint(0, 500, (6, 5), generator=generator)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), x[:, 0] % 4).backward()
            optimizer.step()
        results.append({n: p.detach().clone() for n, p in model.module.named_parameters()})
    return results, handle.report().by_layer


def channels_last(driver: TorchDist) -> list[dict[str, Tensor]]:
    def conv() -> nn.Sequential:
        torch.manual_seed(7)
        return nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Flatten(), nn.Linear(16 * 16, 4))

    digests = []
    for form in (torch.contiguous_format, torch.channels_last):
        model = ddp_of(driver, conv().to(memory_format=form))  # type: ignore[call-overload]
        thinwire.attach(model, "ef(topk(density=0.05))")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            generator = torch.Generator().manual_seed(10 * step + driver.world.rank)
            x = torch.randn(4, 3, 8, 8, generator=generator).to(memory_format=form)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        digests.append({n: p.detach().clone().contiguous() for n, p in model.module.named_parameters()})
    return digests


def scaled(
    driver: TorchDist, composition: Composition = EF_TOPK, overflow_at: int = 2
) -> tuple[str, list[float], bool | None, float]:
    """GradScaler on the CPU: residuals are kept without its factor, and an overflow changes no memory."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    model = ddp_of(driver, bucket_cap_mb=0.004)
    handle = thinwire.attach(model, composition, scaler=scaler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scales, unchanged = [], None
    for step in range(5):
        x, y = data(step, driver.world.rank)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x).float(), y)
        if step == overflow_at and driver.world.rank == 1:
            loss = loss * float("inf")
        before = {n: s.residual.clone() for n, s in handle.exchanger.states.items() if hasattr(s, "residual")}
        start = weights(model)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        if step == overflow_at:
            after = {n: s.residual for n, s in handle.exchanger.states.items() if hasattr(s, "residual")}
            unchanged = all(torch.equal(before[n], after[n]) for n in before) and start == weights(model)
    size = max(float(s.residual.abs().max()) for s in handle.exchanger.states.values() if hasattr(s, "residual"))
    return weights(model), scales, unchanged, size


def spoil(driver: TorchDist, with_test: bool) -> tuple[list[tuple[bool, bool]], int, str]:
    """A NaN on one rank: weights stay, with or without a test of the user's own; the next step is finite."""
    model = ddp_of(driver)
    handle = thinwire.attach(model, EF_TOPK)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    seen = []
    for step in range(5):
        x, y = data(step, driver.world.rank)
        if step == 2 and driver.world.rank == 1:
            x = x * float("nan")
        optimizer.zero_grad()
        before = weights(model)
        nn.functional.cross_entropy(model(x), y).backward()
        all_nan = all(p.grad is not None and bool(p.grad.isnan().all()) for p in model.parameters())
        if not (with_test and all_nan):
            optimizer.step()
        seen.append((all_nan, before == weights(model)))
    return seen, handle.report().skipped_steps, weights(model)


def too_many_bad_steps(driver: TorchDist) -> tuple[int, str, str] | None:
    model = ddp_of(driver)
    thinwire.attach(model, EF_TOPK, max_bad_steps=3)
    for step in range(5):
        x, y = data(step, driver.world.rank)
        try:
            nn.functional.cross_entropy(model(x * float("nan")), y).backward()
        except thinwire.ThinwireError as error:
            return step, type(error).__name__, str(error)
    return None


def join_uneven(driver: TorchDist) -> int:
    model = ddp_of(driver)
    handle = thinwire.attach(model, EF_TOPK)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Join([model]):
        for step in range(3 + 2 * driver.world.rank):
            x, y = data(step, driver.world.rank)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return handle.hook.step


def two_models(driver: TorchDist) -> tuple[list[str], list[int]]:
    models = [ddp_of(driver, Net(40)), ddp_of(driver, Net(56))]
    handles = [thinwire.attach(m, c) for m, c in zip(models, (EF_TOPK, "ef(powersgd(rank=2))"), strict=True)]
    for step in range(3):
        for model in models:
            train(model, driver, 1, start=step)
    return [weights(m) for m in models], [w.hook.step for w in handles]


def compiled(driver: TorchDist) -> tuple[str, int]:
    model = ddp_of(driver)
    handle = thinwire.attach(model, EF_TOPK)
    train(model, driver, 3, forward=torch.compile(model, backend="aot_eager"))
    return weights(model), handle.hook.step


def copy_it(driver: TorchDist) -> tuple[list[str], int]:
    """A copy says that it is one, and can be attached to. DDP can be copied with the default group only."""
    torch.manual_seed(7)
    model = DDP(Net())
    thinwire.attach(model, EF_TOPK)
    train(model, driver, 2)
    twin = copy.deepcopy(model)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        train(twin, driver, 2, start=2)
    again = thinwire.attach(twin, EF_TOPK)
    train(twin, driver, 2, start=4)
    return [str(w.message) for w in told if "thinwire" in str(w.message)], again.hook.step


def live_a_life(driver: TorchDist) -> tuple[dict[str, float], bool, str]:
    """Warm-up, compression, pause, another composition, detached, attached again."""
    model = ddp_of(driver)
    handle = thinwire.attach(model, EF_TOPK, warmup_steps=2)
    bytes_by_phase, sent = {}, 0.0

    def phase(name: str, steps: int, start: int) -> None:
        nonlocal sent
        train(model, driver, steps, start=start)
        total = handle.driver.meter.total().sent_bytes
        bytes_by_phase[name], sent = (total - sent) / steps, total

    phase("warm-up", 2, 0)
    phase("compressed", 2, 2)
    handle.pause()
    phase("paused", 2, 4)
    handle.resume()
    phase("resumed", 2, 6)
    residual = handle.exchanger.states["second.weight"].residual.clone()
    handle.set_composition("ef(powersgd(rank=1))")
    carried = torch.equal(residual, handle.exchanger.states["second.weight"].residual)
    phase("changed", 2, 8)
    handle.detach()
    phase("detached", 2, 10)
    handle = thinwire.attach(model, EF_TOPK)
    sent = 0.0
    phase("attached again", 2, 12)
    return bytes_by_phase, carried, weights(model)


def resume(driver: TorchDist, composition: Composition, cap_mb: float, steps: int = 6, stop: int = 4) -> bool:
    """Steps at a stretch, and some + save + load into new objects + the rest: the same weights to the last bit."""

    def build() -> tuple[DDP, DDPHandle, torch.optim.AdamW]:
        model = ddp_of(driver, bucket_cap_mb=cap_mb)
        return model, thinwire.attach(model, composition), torch.optim.AdamW(model.parameters(), lr=0.01)

    model, handle, optimizer = build()
    train(model, driver, steps, optimizer=optimizer)
    straight = weights(model)
    model, handle, optimizer = build()
    train(model, driver, stop, optimizer=optimizer)
    saved = copy.deepcopy((model.module.state_dict(), optimizer.state_dict(), handle.state_dict()))
    model, handle, optimizer = build()
    model.module.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    handle.load_state_dict(saved[2])
    train(model, driver, steps - stop, start=stop, optimizer=optimizer)
    return straight == weights(model)


def resume_by_dcp(driver: TorchDist, composition: Composition, folder: str) -> tuple[bool, int, bool]:
    """The same through torch's own distributed checkpoints, which know a handle only by its two methods."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.stateful import Stateful

    model = ddp_of(driver)
    handle = thinwire.attach(model, composition)
    train(model, driver, 4)
    dcp.save({"model": model.module.state_dict(), "thinwire": handle}, checkpoint_id=folder, process_group=driver.group)
    train(model, driver, 2, start=4)
    straight = weights(model)
    model = ddp_of(driver)
    handle = thinwire.attach(model, composition)
    state = {"model": model.module.state_dict(), "thinwire": handle}
    dcp.load(state, checkpoint_id=folder, process_group=driver.group)
    model.module.load_state_dict(state["model"])
    train(model, driver, 2, start=4)
    return isinstance(handle, Stateful), handle.hook.step, straight == weights(model)


def resume_each(driver: TorchDist, compositions: list[str], cap_mb: float) -> list[str]:
    """Those of the compositions that did not continue as if nothing had happened."""
    return [text for text in compositions if not resume(driver, text, cap_mb, steps=4, stop=2)]


def save_state(driver: TorchDist, composition: Composition) -> dict[str, Any]:
    model = ddp_of(driver)
    handle = thinwire.attach(model, composition)
    train(model, driver, 4)
    return handle.state_dict(gather=True)


def load_state(driver: TorchDist, composition: Composition, state: dict[str, Any]) -> Any:
    model = ddp_of(driver)
    handle = thinwire.attach(model, composition)
    handle.load_state_dict(state)
    train(model, driver, 1, start=4)
    handle.load_state_dict(state)
    return handle.state_dict(gather=False)[f"rank{driver.world.rank}"]


def drift(driver: TorchDist, on_divergence: str) -> tuple[str, int]:
    model = ddp_of(driver)
    handle = thinwire.attach(model, EF_TOPK, check_weights_every=2, on_divergence=on_divergence)
    train(model, driver, 1)
    if driver.world.rank == 1:
        with torch.no_grad():
            model.module.second.weight[3, 4] += 1e-6
    train(model, driver, 3, start=1)
    return weights(model), handle.report().resynced_tensors


def refusal(driver: TorchDist, composition: Composition) -> tuple[str, str]:
    """What `attach` says of a composition that it does not take."""
    model = DDP(nn.Linear(64, 64), process_group=driver.group)
    try:
        thinwire.attach(model, composition)
    except thinwire.ThinwireError as error:
        return type(error).__name__, str(error)
    return "", ""
