"""What worker processes do in the tests of compositions that change from layer to layer and from time to time."""

from __future__ import annotations

import copy
import random
import time

import torch
from torch import nn

import thinwire
from helpers.ddp_jobs import Net, data, ddp_of, train, weights

SMALL_BUCKETS_MB = 0.006  # four of Net's buckets
LGRECO = "lgreco(start=4, every=3, window=2, observed='target')"
ADAPTIVE = f"ef(adapt(topk(density=0.05), controller={LGRECO}))"
MIXED = f"ef(adapt(topk(density=0.05), qsgd(bits=4), powersgd(rank=2), controller={LGRECO}))"
BY_TIME = "ef(adapt(topk(density=0.05), controller=lgreco(start=20, every=15, window=3, objective='time', calibration_steps=20)))"


def history(wire):
    return [(step, dict(plan)) for step, plan in wire.compressed.plans]


def adapt(driver, composition=ADAPTIVE, steps=12, ddp=None, attach=None):
    """Plans in force after each step, the whole history, and what is missing of what was to be sent."""
    model = ddp_of(driver, **(ddp or {"bucket_cap_mb": SMALL_BUCKETS_MB}))
    wire = thinwire.attach(model, composition, **(attach or {}))
    given, sent, in_force = {}, {}, []

    def note(spec, seen):
        given[spec.name] = given.get(spec.name, 0) + seen.tensor.double()
        sent[spec.name] = sent.get(spec.name, 0) + seen.reduced.sent.double().view(spec.shape)

    wire.compressed.set_watch(note)
    for step in range(steps):
        train(model, driver, 1, start=step)
        in_force.append(dict(wire.compressed.plan))
    lost = max(
        float((given[name] - sent[name] - state.residual.double()).abs().max() / given[name].abs().max())
        for name, state in wire.compressed.memory.items()
        if name in given and hasattr(state, "residual")
    )
    report = wire.report()
    return {
        "in_force": in_force, "history": history(wire), "lost": lost, "weights": weights(model),
        "decisions": wire.compressed.adaptation()["decisions"], "report": str(report), "choices": sorted(
            spec.name for spec, _ in wire.compressed.menus
        ), "share": report.adapting.share, "lr": wire.compressed.lr,
    }  # fmt: skip


def change_back_and_forth(driver):
    """Adaptive, fixed, adaptive again: residuals go along, and each composition chooses or does not."""
    model = ddp_of(driver)
    wire = thinwire.attach(model, ADAPTIVE)
    carried, changes = [], []
    for at, text in enumerate(("ef(topk(density=0.02))", MIXED, "ef(powersgd(rank=1))", ADAPTIVE)):
        train(model, driver, 6, start=6 * at)
        changes.append(len(wire.compressed.plans))
        residual = wire.compressed.memory["second.weight"].residual.clone()
        wire.change(text)
        carried.append(torch.equal(residual, wire.compressed.memory["second.weight"].residual))
    train(model, driver, 6, start=24)
    return carried, changes, weights(model)


def change_to_whole_and_back(driver):
    """By layer, all layers as one, by layer again: residuals go along, in buckets of DDP."""
    model = ddp_of(driver, bucket_cap_mb=SMALL_BUCKETS_MB)
    wire = thinwire.attach(model, "ef(topk(density=0.02))")
    carried, waiting = [], []
    for at, text in enumerate(("ef(flatten(topk(density=0.02)))", "ef(topk(density=0.02))")):
        train(model, driver, 3, start=3 * at)
        residual = wire.compressed.memory["second.weight"].residual.clone()
        wire.change(text)
        carried.append(torch.equal(residual, wire.compressed.memory["second.weight"].residual))
        waiting.append(len(wire.compressed.waits_for))
    train(model, driver, 3, start=6)
    return carried, waiting, wire.compressed.skipped_steps, weights(model)


def resume(driver, composition, steps, stop, clock=None):
    """A run at a stretch, and one that was stored and taken up by new objects: weights, plans and histories."""

    def build():
        model = ddp_of(driver, bucket_cap_mb=SMALL_BUCKETS_MB)
        wire = thinwire.attach(model, composition)
        wire.compressed.set_clock(clock and clock(wire))
        return model, wire, torch.optim.AdamW(model.parameters(), lr=0.01)

    def shown():
        return weights(model), dict(wire.compressed.plan), history(wire), rates(wire)

    model, wire, optimizer = build()
    train(model, driver, steps, optimizer=optimizer)
    straight = shown()
    model, wire, optimizer = build()
    train(model, driver, stop, optimizer=optimizer)
    saved = copy.deepcopy((model.module.state_dict(), optimizer.state_dict(), wire.state_dict()))
    model, wire, optimizer = build()
    for part, state in zip((model.module, optimizer, wire), saved, strict=True):
        part.load_state_dict(state)
    train(model, driver, steps - stop, start=stop, optimizer=optimizer)
    return straight == shown(), straight[2], straight[3]


def rates(wire):
    """What was found out about time, if anything."""
    told = wire.compressed.adaptation()
    return told.get("objective"), told.get("because"), told.get("seconds_per_mb")


def resume_by_time(driver, stop):
    """Clocks that tell the bytes that were sent, at another price in each bucket: the same in every run."""

    def clock(wire):
        meter = wire.driver.meter
        return lambda: 1e-6 * meter.total().sent_bytes

    return resume(driver, BY_TIME, 45, stop, clock)


def save(driver, steps=8, composition=ADAPTIVE):
    model = ddp_of(driver, bucket_cap_mb=SMALL_BUCKETS_MB)
    wire = thinwire.attach(model, composition)
    train(model, driver, steps)
    return wire.state_dict(), dict(wire.compressed.plan), history(wire)


def take_over(driver, state, steps=6, composition=ADAPTIVE):
    """The state of a world of another size: the plan in force, and that all go on alike."""
    model = ddp_of(driver, bucket_cap_mb=SMALL_BUCKETS_MB)
    wire = thinwire.attach(model, composition)
    wire.load_state_dict(state)
    first, begun = (dict(wire.compressed.plan), history(wire)), wire.hook.step
    before = rates(wire)
    train(model, driver, steps, start=begun)
    return first, history(wire), weights(model), (before[1], rates(wire)[1])


def scaled(driver):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4)
    model = ddp_of(driver)
    wire = thinwire.attach(model, ADAPTIVE, scaler=scaler)
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
    sums = wire.compressed.controller_state.sums
    return history(wire), weights(model), all(bool(s.isfinite().all()) for s in sums)


def pause_and_warm_up(driver):
    """Steps that travel dense are not looked at, and no decision falls into them."""
    model = ddp_of(driver)
    wire = thinwire.attach(model, ADAPTIVE, warmup_steps=6)
    train(model, driver, 6)
    begun = [wire.compressed.controller_state.begun]
    wire.pause()
    train(model, driver, 6, start=6)
    begun.append(wire.compressed.controller_state.begun)
    wire.resume()
    train(model, driver, 6, start=12)
    return begun, history(wire), weights(model)


def learning_rates(driver):
    """What a wire was told, after each step; of groups with its parameters, and not of another model's.

    First as its state has it, then as that step's exchange was given it: the optimizer had made the step before.
    """
    model = ddp_of(driver)
    wire = thinwire.attach(model, ADAPTIVE)
    net = model.module
    ours = [{"params": net.first.parameters(), "lr": 0.01}, {"params": net.last.parameters(), "lr": 0.03}]
    optimizer = torch.optim.SGD(ours)
    other = torch.optim.SGD(Net().parameters(), lr=9.0)
    told = []
    for step in range(3):
        train(model, driver, 1, start=step, optimizer=optimizer)
        other.step()
        told.append((wire.state_dict(gather=False)[f"rank{driver.world.rank}"]["lr"], wire.compressed.lr))
        optimizer.param_groups[1]["lr"] /= 10
    return told


def delayed(driver, composition, steps, seed=0):
    """Each rank dawdles as it likes: the plans in force after every step."""
    dawdle = random.Random(1000 * seed + driver.world.rank)
    model = ddp_of(driver, bucket_cap_mb=SMALL_BUCKETS_MB)
    wire = thinwire.attach(model, composition)
    in_force = []
    for step in range(steps):
        time.sleep(dawdle.random() * 0.01)
        train(model, driver, 1, start=step)
        in_force.append(tuple(sorted(wire.compressed.plan.items())))
    return in_force, wire.compressed.adaptation(), weights(model)


def locally(driver, composition, small):
    """Rounds of local steps, with layers of fewer than `small` elements dense."""
    torch.manual_seed(7)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    wire = thinwire.local(model, optimizer, every=2, exchange=composition, small=small, group=driver.group)
    for step in range(24):
        x, y = data(step, driver.world.rank)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    exchanger = wire.rounds.exchanger
    told = [(s, dict(p)) for s, p in exchanger.plans], sorted(s.name for s, _ in exchanger.menus), exchanger.lr
    report = str(wire.report())
    wire.close()
    return *told, report
