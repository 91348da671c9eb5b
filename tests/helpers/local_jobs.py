"""What worker processes do in the tests of `local`."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import thinwire
from helpers.ddp_training import Net, data
from helpers.jobs import digest
from helpers.local_training import workers
from thinwire import TorchDist
from thinwire.catalog.patterns import assign_composition
from thinwire.core import TensorSpec
from thinwire.integrations.local_handle import LocalHandle
from thinwire.sync import LocalRounds, parse_sync


class Normed(nn.Module):
    """With batch norm, a tied layer, a frozen one, and two precisions."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 40)
        self.norm = nn.BatchNorm1d(40)
        self.second = nn.Linear(40, 40)
        self.third = self.second
        self.short = nn.Linear(40, 40, dtype=torch.bfloat16)
        self.frozen = nn.Linear(40, 40)
        self.last = nn.Linear(40, 4)
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.norm(self.first(x)))
        x = torch.tanh(self.third(torch.tanh(self.second(x))))
        x = torch.tanh(self.short(x.bfloat16()).float())
        output: Tensor = self.last(self.frozen(x))
        return output


KINDS: dict[str, type[nn.Module]] = {"Net": Net, "Normed": Normed}


def make(kind: type[nn.Module] = Net, lr: float = 0.05, seed: int = 7) -> tuple[Any, torch.optim.AdamW]:
    torch.manual_seed(seed)
    model = kind()
    wanted = [p for p in model.parameters() if p.requires_grad]
    return model, torch.optim.AdamW(wanted, lr=lr)


def teach(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    rank: int,
    steps: int,
    begin: int = 0,
    spoil: tuple[int, int] | None = None,
) -> list[float]:
    losses = []
    for step in range(begin, begin + steps):
        x, y = data(step, rank)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x).float(), y)
        loss.backward()
        if spoil == (rank, step):
            gradient = next(model.parameters()).grad
            assert gradient is not None
            gradient.view(-1)[0] = float("nan")
        optimizer.step()
        losses.append(loss.item())
    return losses


def named(model: nn.Module) -> str:
    return digest({name: p.detach() for name, p in model.named_parameters()})


def local(driver: TorchDist, model: nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> LocalHandle:
    return thinwire.local(model, optimizer, group=driver.group, **{"timeout_s": 20.0, **options})


def learn(
    driver: TorchDist, options: dict[str, Any], steps: int = 24, kind: str = "Net"
) -> tuple[list[float], str, float, float, float, str]:
    """Losses, the digest of weights after a full average, bytes sent, consensus before it."""
    model, optimizer = make(KINDS[kind])
    with local(driver, model, optimizer, **options) as handle:
        losses = teach(model, optimizer, driver.world.rank, steps)
        apart = handle.consensus()
        handle.full_average()
        after, report = handle.consensus(), handle.report()
    return losses, named(model), report.saving, apart, after, str(report)


def resume(driver: TorchDist, options: dict[str, Any], stop: int, steps: int = 13, kind: str = "Net") -> bool:
    """Is a run that was stopped and resumed on fresh objects the same as one that was not?"""
    rank = driver.world.rank
    model, optimizer = make(KINDS[kind])
    with local(driver, model, optimizer, **options) as handle:
        teach(model, optimizer, rank, stop)
        stored = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "thinwire": handle.state_dict()}
        stored = copy.deepcopy(stored)
        teach(model, optimizer, rank, steps - stop, stop)
        expected = digest(model.state_dict())
    model, optimizer = make(KINDS[kind])
    with local(driver, model, optimizer, **options) as handle:
        model.load_state_dict(stored["model"])
        optimizer.load_state_dict(stored["optimizer"])
        handle.load_state_dict(stored["thinwire"])
        teach(model, optimizer, rank, steps - stop, stop)
        return digest(model.state_dict()) == expected


def rounds_in(driver: TorchDist, text: str, steps: int) -> str:
    """The digest of weights of the small problem, which must not depend on the driver; overlapped rounds overlap."""
    worker = workers(driver.world.size, text)[driver.world.rank]
    return digest(driver.run(worker.train(steps)))


def hooks_and_rounds(driver: TorchDist, options: dict[str, Any], steps: int) -> list[str]:
    """Weights by `local` with rounds that travel meanwhile, and by the same rounds one thing after another."""
    results = []
    for by_hooks in (True, False):
        model, optimizer = make()
        if by_hooks:
            with local(driver, model, optimizer, dense_below=0, **options):
                teach(model, optimizer, driver.world.rank, steps)
        else:
            parameters = dict(model.named_parameters())
            text = ", ".join(f"{name}={value!r}" for name, value in options.items())
            settings = parse_sync(f"local({text})")
            layers = [TensorSpec.of(name, parameter.detach()) for name, parameter in parameters.items()]
            rules = assign_composition(layers, settings.composition, dense_below=0)  # vectors are dense
            rounds = LocalRounds(settings, parameters, rules)
            for step in range(steps):
                hook = optimizer.register_step_pre_hook(partial(before, rounds, step))
                teach(model, optimizer, driver.world.rank, 1, step)
                hook.remove()
                driver.run(rounds.after_step(step, driver.world))
        results.append(named(model))
    return results


def before(rounds: LocalRounds, step: int, *_: object) -> None:
    """An optimizer's hook must give nothing back."""
    rounds.before_step(step)


def start_apart(driver: TorchDist) -> str:
    """Ranks begin with different weights: rank 0's count."""
    model, optimizer = make(seed=driver.world.rank)
    with local(driver, model, optimizer, sync_every=2):
        pass
    return named(model)


def disagree(driver: TorchDist, options: list[dict[str, Any]]) -> tuple[str, str] | None:
    model, optimizer = make()
    try:
        local(driver, model, optimizer, **options[driver.world.rank]).close()
    except thinwire.ThinwireError as error:
        return type(error).__name__, str(error)
    return None


def normed(driver: TorchDist, buffers: str) -> tuple[str, str, bool, int]:
    model, optimizer = make(Normed)
    frozen = model.frozen.weight.clone()
    with local(driver, model, optimizer, sync_every=4, buffers=buffers, composition="ef(topk(density=0.1))"):
        teach(model, optimizer, driver.world.rank, 8)
    floats = {name: b for name, b in model.named_buffers() if b.is_floating_point()}
    return named(model), digest(floats), torch.equal(frozen, model.frozen.weight), int(model.norm.num_batches_tracked)


def spoil(driver: TorchDist, steps: int, most: int = 10) -> str | tuple[str, int, bool]:
    """A NaN on rank 1: (digest, skipped, whether all is finite)."""
    model, optimizer = make()
    with local(driver, model, optimizer, sync_every=4, max_bad_rounds=most) as handle:
        try:
            teach(model, optimizer, driver.world.rank, steps, spoil=(1, 5))
        except thinwire.NonFiniteError as error:
            return str(error)
        finite = all(bool(p.isfinite().all()) for p in model.parameters())
        moments = all(bool(s["exp_avg"].isfinite().all()) for s in optimizer.state.values())
        return named(model), handle.report().skipped_steps, finite and moments


def diverge(driver: TorchDist, on_divergence: str) -> str | tuple[str, int]:
    model, optimizer = make()
    with local(driver, model, optimizer, sync_every=2, check_weights_every=1, on_divergence=on_divergence) as handle:
        teach(model, optimizer, driver.world.rank, 2)
        if driver.world.rank == 1:
            handle.rounds.anchor["second.weight"][0, 0] += 1.0
        try:
            teach(model, optimizer, driver.world.rank, 2, 2)
        except thinwire.DivergedError as error:
            return str(error)
        return named(model), handle.report().resynced_tensors


def look_at_the_mean(driver: TorchDist) -> bool:
    """Evaluating inside `averaged()` leaves no trace."""
    digests = []
    for looks in (False, True):
        model, optimizer = make()
        with local(driver, model, optimizer, sync_every=4) as handle:
            for step in range(7):
                teach(model, optimizer, driver.world.rank, 1, step)
                if looks:
                    with handle.averaged():
                        assert handle.consensus() < 1e-9
        digests.append(named(model))
    return digests[0] == digests[1]


def reset_moments(driver: TorchDist) -> list[int]:
    counts = []
    model, optimizer = make()
    with local(driver, model, optimizer, sync_every=3, optimizer_state="reset"):
        for step in range(6):
            teach(model, optimizer, driver.world.rank, 1, step)
            counts.append(len(optimizer.state))
    return counts


def let_go(driver: TorchDist) -> tuple[str, str, int]:
    """After the context, steps are the worker's own."""
    model, optimizer = make()
    with local(driver, model, optimizer, sync_every=1) as handle:
        teach(model, optimizer, driver.world.rank, 2)
    same = named(model)
    teach(model, optimizer, driver.world.rank, 1, 2)
    return same, named(model), handle.step


def another_world(driver: TorchDist, stored: dict[str, Any] | None) -> dict[str, Any]:
    model, optimizer = make()
    with local(
        driver, model, optimizer, sync_every=4, composition="ef(topk(density=0.1))", outer_optimizer="nesterov()"
    ) as handle:
        if stored is None:
            teach(model, optimizer, driver.world.rank, 4)
            return handle.state_dict(gather=True)
        handle.load_state_dict(stored)
        return handle.rounds.state_dict()


def moments_around(driver: TorchDist, options: dict[str, Any]) -> list[str]:
    """Digests of the optimizer's moments before a round's last step, and after it."""
    model, optimizer = make()
    found = []
    with local(driver, model, optimizer, dense_below=0, **options):
        for steps in (3, 1):
            teach(model, optimizer, driver.world.rank, steps, begin=0 if steps == 3 else 3)
            states = dict(enumerate(optimizer.state_dict()["state"].values()))
            found.append(digest({f"{at} {key}": tensor for at, s in states.items() for key, tensor in s.items()}))
    return found


def stored_moments(driver: TorchDist, options: dict[str, Any], stored: dict[str, Any] | None) -> dict[str, Any]:
    """The handle's state after a round; or, given one of another world, what is taken over: beliefs of layers."""
    model, optimizer = make()
    with local(driver, model, optimizer, dense_below=0, **options) as handle:
        if stored is None:
            teach(model, optimizer, driver.world.rank, 4)
            return handle.state_dict(gather=True)
        handle.load_state_dict(stored)
        assert handle.averaging is not None
        layers = handle.averaging.state_dict()["exchanger"]["layers"]
        return {f"{name} {key}": tensor for name, flat in layers.items() for key, tensor in flat.items()}


def uneven(driver: TorchDist, steps: Sequence[int]) -> tuple[str, float, list[str | int]]:
    """How it ended, and how long after the last step."""
    model, optimizer = make()
    ended, began = "well", time.monotonic()
    try:
        with thinwire.local(
            model, optimizer, sync_every=4, composition="ef(topk(density=0.1))", group=driver.group
        ) as handle:
            teach(model, optimizer, driver.world.rank, steps[driver.world.rank])
            began = time.monotonic()
    except thinwire.ProtocolError as error:
        ended = str(error)
    return ended, time.monotonic() - began, sorted(handle.driver.meter.sum_by("layer"))
