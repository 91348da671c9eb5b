"""What worker processes do in the tests of states: changed, loaded into another composition, stored by torch."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor

import thinwire
from helpers.ddp_training import EF_TOPK, Composition, ddp_of, train
from thinwire import TorchDist
from thinwire.core import memory_items
from thinwire.integrations.ddp_handle import DDPHandle

T = TypeVar("T")


def held(handle: DDPHandle, kind: str = "residual") -> dict[str, Tensor]:
    """What a handle's layers hold of this kind, by name."""
    exchanger = handle.exchanger
    found = {}
    for name, spec in exchanger.layers.items():
        values = [
            h.value for h in memory_items(exchanger.aggregators[name], exchanger.states[name], spec) if h.kind == kind
        ]
        if values:
            found[name] = sum(v.double() for v in values)
    return found


class Recorder(logging.Handler):
    """Keeps the texts of log records."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def logged(action: Callable[[], T]) -> tuple[T, list[str]]:
    """What an action gives, and the warnings that it logs."""
    handler = Recorder()
    log = logging.getLogger("thinwire")
    log.addHandler(handler)
    try:
        return action(), handler.texts
    finally:
        log.removeHandler(handler)


def change(
    driver: TorchDist, before: str, after: str, kind: str = "residual"
) -> tuple[dict[str, Tensor], dict[str, Tensor], list[str], list[str]]:
    """Mass of one kind before and after `change`; what it returned and logged; whether the state then loads."""
    model = ddp_of(driver)
    handle = thinwire.attach(model, before)
    train(model, driver, 3)
    owed = held(handle, kind)
    dropped, texts = logged(lambda: handle.set_composition(after))
    kept = held(handle, kind)
    train(model, driver, 1, start=3)
    again = thinwire.attach(ddp_of(driver), after)
    again.load_state_dict(handle.state_dict())
    return owed, kept, dropped, texts


def change_importance(driver: TorchDist) -> tuple[list[str], list[str]]:
    model = ddp_of(driver)
    handle = thinwire.attach(model, "ef(impk(density=0.05))")
    filled = handle.exchanger.importance
    filled["second.weight"] = torch.full((40, 40), 3.0)
    dropped = handle.set_composition("ef(importance_topk(density=0.05))")
    filled["third.weight"] = torch.ones(40, 40)  # as a Refresher would
    return dropped, sorted(handle.exchanger.importance)


def load_another(
    driver: TorchDist, before: str, after: str, strict: bool
) -> tuple[str, str] | tuple[list[str], list[str], float, int]:
    """What is said when a state of one composition is loaded into another, and the residuals' difference."""
    model = ddp_of(driver)
    handle = thinwire.attach(model, before)
    train(model, driver, 3)
    stored, owed = handle.state_dict(), held(handle)
    model = ddp_of(driver)
    handle = thinwire.attach(model, after)
    try:
        dropped, texts = logged(lambda: handle.load_state_dict(stored, strict=strict))
    except thinwire.ThinwireError as error:
        return type(error).__name__, str(error)
    kept = held(handle)
    apart = max(float((owed[name] - kept[name]).abs().max()) for name in kept.keys() & owed.keys())
    train(model, driver, 1, start=3)
    return dropped, texts, apart, handle.hook.step


def load_without_a_name(driver: TorchDist) -> bool:
    """A state of before states named their composition."""
    model = ddp_of(driver)
    handle = thinwire.attach(model, EF_TOPK)
    train(model, driver, 3)
    stored = handle.state_dict()
    del stored["composition"]
    again = thinwire.attach(ddp_of(driver), EF_TOPK)
    again.load_state_dict(stored)
    return all(torch.equal(a, held(again)[name]) for name, a in held(handle).items())


def load_odd_states(driver: TorchDist) -> dict[str, tuple[str, str]]:
    """What is said of states that are none."""
    handle = thinwire.attach(ddp_of(driver), EF_TOPK)
    good = handle.state_dict()
    key = f"rank{driver.world.rank}"
    cases = {"empty": {}, "model": {"first.weight": torch.ones(2)}, "no world": {key: good[key]}}
    cases |= {
        f"no {name}": {**good, key: {k: v for k, v in good[key].items() if k != name}} for name in ("paused", "layers")
    }
    cases["other size"] = {**good, "world_size": 3}
    told = {}
    for name, state in cases.items():
        try:
            handle.load_state_dict(state)
        except Exception as error:
            told[name] = (type(error).__name__, str(error))
    return told


def resume_without_the_handle(
    driver: TorchDist, kind: str, load: bool, composition: Composition = EF_TOPK
) -> list[list[str]]:
    """Warnings of a run whose optimizer has steps, with and without the handle's state; two steps, so told once."""
    make = {"adam": lambda p: torch.optim.AdamW(p, lr=0.01), "sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9)}
    model = ddp_of(driver)
    handle = thinwire.attach(model, composition)
    optimizer = make[kind](model.parameters())
    with warnings.catch_warnings(record=True) as first:
        warnings.simplefilter("always")
        train(model, driver, 2, optimizer=optimizer)
    stored = copy.deepcopy((optimizer.state_dict(), handle.state_dict()))
    model = ddp_of(driver)
    handle = thinwire.attach(model, composition)
    optimizer = make[kind](model.parameters())
    optimizer.load_state_dict(stored[0])
    if load:
        handle.load_state_dict(stored[1])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        train(model, driver, 2, start=2, optimizer=optimizer)
    return [[str(w.message) for w in some if "memory" in str(w.message)] for some in (first, told)]


def save_dcp(driver: TorchDist, composition: Composition, folder: str, gathered: bool = False) -> dict[str, Tensor]:
    model = ddp_of(driver)
    handle = thinwire.attach(model, composition)
    train(model, driver, 3)
    stored = handle.state_dict(gather=True) if gathered else handle
    dcp.save({"model": model.module.state_dict(), "thinwire": stored}, checkpoint_id=folder, process_group=driver.group)
    return held(handle)


def load_by_torch(driver: TorchDist, composition: Composition, folder: str) -> tuple[str, str]:
    """What `dcp.load` says, which knows a handle by its two methods alone."""
    handle = thinwire.attach(ddp_of(driver), composition)
    try:
        dcp.load({"thinwire": handle}, checkpoint_id=folder, process_group=driver.group)
    except BaseException as error:  # torch's own is one
        return type(error).__name__, str(error)
    return "", ""


def load_dcp_elsewhere(driver: TorchDist, composition: Composition, folders: list[str]) -> Any:
    """Ranks that load from different folders."""
    return load_dcp(driver, composition, folders[driver.world.rank])


def load_dcp(
    driver: TorchDist, composition: Composition, folder: str, strict: bool = True, key: str = "thinwire"
) -> tuple[str, str] | tuple[dict[str, Tensor], int, list[str]]:
    model = ddp_of(driver)
    handle = thinwire.attach(model, composition)
    try:
        dropped = thinwire.load_dcp(handle, folder, key, strict)
    except thinwire.ThinwireError as error:
        return type(error).__name__, str(error)
    kept = held(handle)
    train(model, driver, 1, start=3)
    return kept, handle.hook.step, dropped
