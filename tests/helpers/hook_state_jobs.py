"""What worker processes do in the tests of `HookState` and `hook`."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch
from torch import nn

import thinwire
from helpers.ddp_training import EF_TOPK, Net, data, ddp_of, train, weights
from helpers.options_jobs import said
from thinwire import TorchDist


def register_and_attach(driver: TorchDist) -> tuple[list[str], list[float]]:
    """The weights after a few steps, and the bytes sent: by attach, by a state with a model, by one bound later."""
    digests, sent = [], []
    for way in ("attach", "state", "bound before", "bound after"):
        model = ddp_of(driver)
        if way == "attach":
            handle = thinwire.attach(model, EF_TOPK, warmup_steps=1)
        elif way == "state":
            state = thinwire.HookState(model, EF_TOPK, warmup_steps=1)
            model.register_comm_hook(state, thinwire.hook)
            handle = state.handle
        else:
            state = thinwire.HookState(EF_TOPK, warmup_steps=1)
            if way == "bound before":
                handle = state.bind(model)
            model.register_comm_hook(state, thinwire.hook)
            if way == "bound after":
                handle = state.bind(model)
        train(model, driver, 5)
        digests.append(weights(model))
        sent.append(handle.report().sent_bytes)
    return digests, sent


def attach_after_state(driver: TorchDist) -> tuple[list[int], tuple[str, str]]:
    """Steps of both handles when attach follows a HookState, registered or not; and the old state's handle."""
    steps = []
    for is_registered in (True, False):
        model = ddp_of(driver)
        state = thinwire.HookState(model, EF_TOPK)
        if is_registered:
            model.register_comm_hook(state, thinwire.hook)
            train(model, driver, 2)
        newer = thinwire.attach(model, "ef(topk(density=0.1))")
        train(model, driver, 3)
        steps.append(newer.hook.step)
    newer.detach()
    train(model, driver, 1)
    return steps, said(lambda: state.handle)


def refusals(driver: TorchDist) -> list[tuple[str, str]]:
    """Errors of wrong calls."""
    model, attached, other = ddp_of(driver), ddp_of(driver), ddp_of(driver)
    thinwire.attach(attached, EF_TOPK)
    bound = thinwire.HookState(model, EF_TOPK)
    unbound: Any = thinwire.HookState(EF_TOPK)
    other.register_comm_hook(unbound, thinwire.hook)
    x, y = data(0, driver.world.rank)
    return [
        said(lambda: thinwire.HookState(ddp_of(driver))),
        said(lambda: thinwire.HookState(Net(), EF_TOPK)),
        said(lambda: thinwire.HookState(ddp_of(driver), EF_TOPK, warmup=3)),
        said(lambda: thinwire.HookState(ddp_of(driver), EF_TOPK, warmup_steps=-1)),
        said(lambda: thinwire.HookState(attached, EF_TOPK)),
        said(lambda: bound.bind(ddp_of(driver))),
        said(lambda: unbound.handle),
        said(lambda: nn.functional.cross_entropy(other(x), y).backward()),
    ]


def collect_model(driver: TorchDist) -> tuple[bool, tuple[str, str]]:
    """Whether a model with a registered state is freed, and what its state says then."""
    model = ddp_of(driver, find_unused_parameters=True)
    state = thinwire.HookState(model, EF_TOPK)
    model.register_comm_hook(state, thinwire.hook)
    train(model, driver, 2)
    alive = weakref.ref(model)
    del model
    gc.collect()
    return alive() is None, said(lambda: state.handle)


def profile_step(driver: TorchDist) -> set[str]:
    """Names of thinwire's ranges in a profile of one step."""
    model = ddp_of(driver)
    thinwire.attach(model, EF_TOPK)
    train(model, driver, 2)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        train(model, driver, 1, start=2)
    return {event.key for event in profile.key_averages() if event.key.startswith("thinwire::")}
