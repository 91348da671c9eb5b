"""What worker processes do in the tests of states that lack a rank's memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import thinwire
from helpers.ddp_training import EF_TOPK, Composition, ddp_of, train, weights
from helpers.local_jobs import local, make, teach
from helpers.state_jobs import held, logged
from thinwire import TorchDist
from thinwire.testing import assert_same

State = dict[str, Any]
Loaded = tuple[list[str], list[str], dict[str, Tensor], int, str, dict[str, int]]


def load(driver: TorchDist, composition: Composition, states: list[State], strict: bool) -> tuple[str, str] | Loaded:
    """The error of loading; or what was dropped and logged, the residuals, and step, weights and plan after training."""
    model = ddp_of(driver)
    handle = thinwire.attach(model, composition, check_weights_every=1)
    try:
        dropped, texts = logged(lambda: handle.load_state_dict(states[driver.world.rank], strict=strict))
    except thinwire.ThinwireError as error:
        return type(error).__name__, str(error)
    kept = held(handle)
    train(model, driver, 4, start=4)
    return dropped, texts, kept, handle.hook.step, weights(model), dict(handle.exchanger.plan)


def save_alone(driver: TorchDist) -> tuple[State | None, State, float]:
    """What rank 0 gets alone while the others wait; what all get together; bytes that the first of these took."""
    model = ddp_of(driver)
    handle = thinwire.attach(model, EF_TOPK)
    train(model, driver, 2)
    before = handle.driver.meter.total().sent_bytes
    alone = handle.state_dict() if driver.world.rank == 0 else None
    sent = handle.driver.meter.total().sent_bytes - before
    driver.barrier()
    return alone, handle.state_dict(gather=True), sent


def keep_state(driver: TorchDist, compositions: list[str]) -> list[str]:
    """Compositions of which a state that was kept in memory changed while training went on."""
    changed = []
    for composition in compositions:
        model = ddp_of(driver)
        handle = thinwire.attach(model, composition)
        train(model, driver, 3)
        state, copy = handle.state_dict(), handle.state_dict(gather=True)
        train(model, driver, 3, start=3)
        key = f"rank{driver.world.rank}"
        try:
            assert_same(state[key], copy[key])
        except AssertionError:
            changed.append(composition)
    return changed


def keep_local_state(driver: TorchDist, options: dict[str, Any]) -> None:
    """The same for `local`, with batch norm's buffers; raises AssertionError if the state changed."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(12, 20), torch.nn.BatchNorm1d(20), torch.nn.Linear(20, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with local(driver, model, optimizer, dense_below=0, **options) as handle:
        _teach_drawn(model, optimizer, driver.world.rank, 5)
        state, copy = handle.state_dict(), handle.state_dict(gather=True)
        _teach_drawn(model, optimizer, driver.world.rank, 5)
        key = f"rank{driver.world.rank}"
        assert_same(state[key], copy[key])


def _teach_drawn(model: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int, steps: int) -> None:
    generator = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        optimizer.zero_grad()
        x = torch.randn(6, 12, generator=generator)
        torch.nn.functional.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
        optimizer.step()


def load_local(
    driver: TorchDist, options: dict[str, Any], stored: State | None, strict: bool
) -> State | tuple[str, str] | tuple[list[str], State, State]:
    """A gathered state after a round; or, given one, the error, or what is dropped and states before and after."""
    model, optimizer = make()
    rank = driver.world.rank
    with local(driver, model, optimizer, dense_below=0, **options) as handle:
        if stored is None:
            teach(model, optimizer, rank, 5)
            return handle.state_dict(gather=True)
        try:
            dropped = handle.load_state_dict(stored, strict=strict)
        except thinwire.ThinwireError as error:
            return type(error).__name__, str(error)
        loaded = handle.state_dict()[f"rank{rank}"]
        teach(model, optimizer, rank, 4, 5)
        return dropped, loaded, handle.state_dict()[f"rank{rank}"]
