"""What worker processes do in the tests of compositions that change from layer to layer and from time to time."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 (its usual name)

import thinwire
from helpers.ddp_training import Composition, Net, data, ddp_of, train, weights
from thinwire import TensorSpec, TorchDist
from thinwire.integrations.ddp_handle import DDPHandle

SMALL_BUCKETS_MB = 0.006  # four of Net's buckets
LGRECO = "lgreco(start=4, every=3, window=2, observed='target')"
ADAPTIVE = f"ef(adapt(topk(density=0.05), controller={LGRECO}))"
MIXED = f"ef(adapt(topk(density=0.05), qsgd(bits=4), powersgd(rank=2), controller={LGRECO}))"
BY_TIME = "ef(adapt(topk(density=0.05), controller=lgreco(start=20, every=15, window=3, objective='time', calibration_steps=20)))"
History = list[tuple[int, dict[str, int]]]  # (step, plan) of each change


def history(handle: DDPHandle) -> History:
    return [(step, dict(plan)) for step, plan in handle.exchanger.plans]


def adapt(
    driver: TorchDist,
    composition: Composition = ADAPTIVE,
    steps: int = 12,
    ddp: dict[str, Any] | None = None,
    attach: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Plans in force after each step, the whole history, and what is missing of what was to be sent."""
    model = ddp_of(driver, **(ddp or {"bucket_cap_mb": SMALL_BUCKETS_MB}))
    handle = thinwire.attach(model, composition, **(attach or {}))
    given: dict[str, Any] = {}
    sent: dict[str, Any] = {}
    in_force = []

    def note(spec: TensorSpec, seen: Any) -> None:
        given[spec.name] = given.get(spec.name, 0) + seen.tensor.double()
        sent[spec.name] = sent.get(spec.name, 0) + seen.reduced.sent.double().view(spec.shape)

    handle.exchanger.set_layer_callback(note)
    for step in range(steps):
        train(model, driver, 1, start=step)
        in_force.append(dict(handle.exchanger.plan))
    lost = max(
        float((given[name] - sent[name] - state.residual.double()).abs().max() / given[name].abs().max())
        for name, state in handle.exchanger.states.items()
        if name in given and hasattr(state, "residual")
    )
    report = handle.report()
    assert report.adapting is not None
    return {
        "in_force": in_force, "history": history(handle), "lost": lost, "weights": weights(model),
        "decisions": handle.exchanger.controller_report()["decisions"], "report": str(report), "choices": sorted(
            spec.name for spec, _ in handle.exchanger.menus
        ), "share": report.adapting.share, "lr": handle.exchanger.lr,
    }  # fmt: skip


def change_back_and_forth(driver: TorchDist) -> tuple[list[bool], list[int], str]:
    """Adaptive, fixed, adaptive again: residuals go along, and each composition chooses or does not."""
    model = ddp_of(driver)
    handle = thinwire.attach(model, ADAPTIVE)
    carried, changes = [], []
    for at, text in enumerate(("ef(topk(density=0.02))", MIXED, "ef(powersgd(rank=1))", ADAPTIVE)):
        train(model, driver, 6, start=6 * at)
        changes.append(len(handle.exchanger.plans))
        residual = handle.exchanger.states["second.weight"].residual.clone()
        handle.set_composition(text)
        carried.append(torch.equal(residual, handle.exchanger.states["second.weight"].residual))
    train(model, driver, 6, start=24)
    return carried, changes, weights(model)


def change_to_whole_and_back(driver: TorchDist) -> tuple[list[bool], list[int], int, str]:
    """By layer, all layers as one, by layer again: residuals go along, in buckets of DDP."""
    model = ddp_of(driver, bucket_cap_mb=SMALL_BUCKETS_MB)
    handle = thinwire.attach(model, "ef(topk(density=0.02))")
    carried, waiting = [], []
    for at, text in enumerate(("ef(flatten(topk(density=0.02)))", "ef(topk(density=0.02))")):
        train(model, driver, 3, start=3 * at)
        residual = handle.exchanger.states["second.weight"].residual.clone()
        handle.set_composition(text)
        carried.append(torch.equal(residual, handle.exchanger.states["second.weight"].residual))
        waiting.append(len(handle.exchanger.flattened_layers))
    train(model, driver, 3, start=6)
    return carried, waiting, handle.exchanger.skipped_steps, weights(model)


def resume(
    driver: TorchDist,
    composition: Composition,
    steps: int,
    stop: int,
    clock: Callable[[DDPHandle], Callable[[], float]] | None = None,
) -> tuple[bool, Any, Any]:
    """A run at a stretch, and one that was stored and taken up by new objects: weights, plans and histories."""

    def build() -> tuple[DDP, DDPHandle, torch.optim.AdamW]:
        model = ddp_of(driver, bucket_cap_mb=SMALL_BUCKETS_MB)
        handle = thinwire.attach(model, composition)
        handle.exchanger.set_clock(clock and clock(handle))
        return model, handle, torch.optim.AdamW(model.parameters(), lr=0.01)

    def shown() -> tuple[Any, ...]:
        return weights(model), dict(handle.exchanger.plan), history(handle), rates(handle)

    model, handle, optimizer = build()
    train(model, driver, steps, optimizer=optimizer)
    straight = shown()
    model, handle, optimizer = build()
    train(model, driver, stop, optimizer=optimizer)
    saved = copy.deepcopy((model.module.state_dict(), optimizer.state_dict(), handle.state_dict()))
    model, handle, optimizer = build()
    for part, state in zip((model.module, optimizer, handle), saved, strict=True):
        part.load_state_dict(state)
    train(model, driver, steps - stop, start=stop, optimizer=optimizer)
    return straight == shown(), straight[2], straight[3]


def rates(handle: DDPHandle) -> tuple[Any, Any, Any]:
    """What was found out about time, if anything."""
    told = handle.exchanger.controller_report()
    return told.get("objective"), told.get("because"), told.get("seconds_per_mb")


def resume_by_time(driver: TorchDist, stop: int) -> tuple[bool, Any, Any]:
    """Clocks that tell the bytes that were sent, at another price in each bucket: the same in every run."""

    def clock(handle: DDPHandle) -> Callable[[], float]:
        meter = handle.driver.meter
        return lambda: 1e-6 * meter.total().sent_bytes

    return resume(driver, BY_TIME, 45, stop, clock)


def save(
    driver: TorchDist, steps: int = 8, composition: Composition = ADAPTIVE
) -> tuple[dict[str, Any], dict[str, int], History]:
    model = ddp_of(driver, bucket_cap_mb=SMALL_BUCKETS_MB)
    handle = thinwire.attach(model, composition)
    train(model, driver, steps)
    return handle.state_dict(gather=True), dict(handle.exchanger.plan), history(handle)


def take_over(
    driver: TorchDist, state: dict[str, Any], steps: int = 6, composition: Composition = ADAPTIVE
) -> tuple[tuple[dict[str, int], History], History, str, tuple[Any, Any]]:
    """The state of a world of another size: the plan in force, and that all go on alike."""
    model = ddp_of(driver, bucket_cap_mb=SMALL_BUCKETS_MB)
    handle = thinwire.attach(model, composition)
    handle.load_state_dict(state)
    first, begun = (dict(handle.exchanger.plan), history(handle)), handle.hook.step
    before = rates(handle)
    train(model, driver, steps, start=begun)
    return first, history(handle), weights(model), (before[1], rates(handle)[1])


def scaled(driver: TorchDist) -> tuple[History, str, bool]:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4)
    model = ddp_of(driver)
    handle = thinwire.attach(model, ADAPTIVE, scaler=scaler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(9):
        x, y = data(step, driver.world.rank)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        if step == 2 and driver.world.rank == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    sums = handle.exchanger.controller_state.sums
    return history(handle), weights(model), all(bool(s.isfinite().all()) for s in sums)


def pause_and_warm_up(driver: TorchDist) -> tuple[list[Any], History, str]:
    """Steps that are sent dense are not observed, and no decision is taken in them."""
    model = ddp_of(driver)
    handle = thinwire.attach(model, ADAPTIVE, warmup_steps=6)
    train(model, driver, 6)
    counts = [handle.exchanger.controller_state.num_exchanges]
    handle.pause()
    train(model, driver, 6, start=6)
    counts.append(handle.exchanger.controller_state.num_exchanges)
    handle.resume()
    train(model, driver, 6, start=12)
    return counts, history(handle), weights(model)


def learning_rates(driver: TorchDist) -> list[tuple[Any, float | None]]:
    """What a handle was told, after each step; of groups with its parameters, and not of another model's.

    First as its state has it, then as that step's exchange was given it: the optimizer had made the step before.
    """
    model = ddp_of(driver)
    handle = thinwire.attach(model, ADAPTIVE)
    net = model.module
    ours = [{"params": net.first.parameters(), "lr": 0.01}, {"params": net.last.parameters(), "lr": 0.03}]
    optimizer = torch.optim.SGD(ours)
    other = torch.optim.SGD(Net().parameters(), lr=9.0)
    told = []
    for step in range(3):
        train(model, driver, 1, start=step, optimizer=optimizer)
        other.step()
        told.append((handle.state_dict(gather=False)[f"rank{driver.world.rank}"]["lr"], handle.exchanger.lr))
        optimizer.param_groups[1]["lr"] /= 10
    return told


def delayed(
    driver: TorchDist, composition: Composition, steps: int, seed: int = 0
) -> tuple[list[tuple[tuple[str, int], ...]], dict[str, Any], str]:
    """Each rank dawdles as it likes: the plans in force after every step."""
    dawdle = random.Random(1000 * seed + driver.world.rank)
    model = ddp_of(driver, bucket_cap_mb=SMALL_BUCKETS_MB)
    handle = thinwire.attach(model, composition)
    in_force = []
    for step in range(steps):
        time.sleep(dawdle.random() * 0.01)
        train(model, driver, 1, start=step)
        in_force.append(tuple(sorted(handle.exchanger.plan.items())))
    return in_force, handle.exchanger.controller_report(), weights(model)


def locally(
    driver: TorchDist, composition: Composition, dense_below: int
) -> tuple[History, list[str], float | None, str]:
    """Rounds of local steps, with layers of fewer than `small` elements dense."""
    torch.manual_seed(7)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    handle = thinwire.local(
        model, optimizer, sync_every=2, composition=composition, dense_below=dense_below, group=driver.group
    )
    for step in range(24):
        x, y = data(step, driver.world.rank)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    exchanger = handle.rounds.exchanger
    told = [(s, dict(p)) for s, p in exchanger.plans], sorted(s.name for s, _ in exchanger.menus), exchanger.lr
    report = str(handle.report())
    handle.close()
    return *told, report
