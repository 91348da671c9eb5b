"""What a user imports: two lines in a DDP script, one around a plain loop, or a server and its workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel

from .catalog import SMALL
from .catalog.patterns import Wanted
from .core import check_flag, check_int, check_timeout
from .drivers.meter import Traffic
from .integrations.local import LocalWire
from .integrations.local_parts import LocalOptions
from .integrations.moments import MomentsWire, move
from .integrations.opening import check_group
from .integrations.slot import Slot
from .integrations.soundness import check_soundness
from .integrations.wire import Wire
from .integrations.wire_options import WireOptions
from .integrations.wrappers import ddp_of
from .optimizer_state import AdamMoments, Averaging, Moments, Moving, in_order, moments_of, moments_text
from .serving import join as join
from .serving import serve as serve
from .sync import Local, Outer, SyncPolicy, outer_of, parse_policy


def attach(
    model: DistributedDataParallel,
    composition: Wanted | Mapping[str, Wanted],
    *,
    scaler: GradScaler | None = None,
    warmup_steps: int = 0,
    small: int = SMALL,
    seed: int = 0,
    check_every: int = 100,
    on_divergence: str = "stop",
    most_bad_steps: int = 10,
    timeout_s: float = 60.0,
) -> Wire:
    """Let a DDP model's gradients travel through a composition, from its next backward pass on.

    composition: a text such as "ef(topk(density=0.01))", a part, or a mapping of name patterns to those; the first
    pattern that matches counts. Biases, norms and layers of fewer than `small` elements travel dense, in one message.
    scaler: your GradScaler, so that memories hold gradients without its factor. warmup_steps: so many steps are dense.
    check_every: steps between comparisons of all ranks' weights; on_divergence="heal" copies rank 0's instead of
    stopping. most_bad_steps: after so many non-finite steps in a row, `backward` raises. All ranks call this alike.
    """
    options = WireOptions(scaler, warmup_steps, small, seed, check_every, on_divergence, most_bad_steps, timeout_s)
    ddp = ddp_of(model)
    wire = Wire(ddp, composition, options)
    try:
        Slot.of(ddp).hold(wire)  # last: a refusal leaves the model as it was
    except BaseException:
        wire.driver.close()
        raise
    return wire


def local(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    every: int | str | SyncPolicy = 16,
    exchange: Wanted | Mapping[str, Wanted] = "dense()",
    outer: str | Outer = "average()",
    payload: str = "deltas",
    overlap: bool = False,
    fragments: int = 1,
    delay: int = 0,
    mixing: float = 0.0,
    average_every: int = 0,
    buffers: str = "average",
    optimizer_state: str = "local",
    small: int = SMALL,
    seed: int = 0,
    check_every: int = 100,
    on_divergence: str = "stop",
    most_bad_rounds: int = 10,
    timeout_s: float = 60.0,
    hooks: bool = True,
    group: Any = None,
) -> LocalWire:
    """Let every rank train its own copy of a plain model, and bring the copies together every so many steps.

    Use it as a context around the loop; it counts `optimizer.step()`. every: steps, or a policy such as
    "post_local(start=1000, period=16)". exchange: a composition, or a mapping of name patterns, as `attach` takes them.
    outer: what is made of the averaged delta: "average()", "sgd(lr=1, momentum=0.5)", "nesterov(lr=0.7, momentum=0.9)",
    "adam(lr=0.01)", or any class of torch.optim in lower case, such as "rmsprop(lr=0.01)".
    payload, overlap, fragments, delay, mixing, average_every: see `sync.Local`. buffers: floating ones, such as batch
    norms' running means, are averaged with each round, or stay "local". optimizer_state: moments stay each rank's own
    ("local"), are dropped after each round ("reset"), or Adam's are averaged with it through a composition, such as
    "uniform(bits=8)" (see `thinwire.moments`). All ranks call this alike; without a process group it is a world of one.
    """
    policy = parse_policy(every) if isinstance(every, str) else every
    settings = Local(
        every=policy, outer=outer_of(outer), payload=payload, overlap=overlap,
        fragments=fragments, delay=delay, mixing=mixing, average_every=average_every,
    )  # fmt: skip
    options = LocalOptions(
        buffers, optimizer_state, small, seed, check_every, on_divergence, most_bad_rounds, timeout_s, hooks
    )
    return LocalWire(model, optimizer, settings, exchange, options, group)


def average_moments(
    optimizer: torch.optim.Optimizer,
    composition: str | Moments = "dense()",
    *,
    small: int = SMALL,
    seed: int = 0,
    timeout_s: float = 60.0,
    group: Any = None,
    now: bool = True,
) -> MomentsWire:
    """Let all ranks' Adam or AdamW have the average of their moments: `thinwire.moments.average`.

    composition: a text such as "uniform(bits=8)" or "ef21(topk(density=0.1))", or one that changes the rules by which
    v stays sound, such as 'moments(uniform(bits=4), transmit="log")'. Moments of vectors and of layers of fewer than
    `small` elements travel dense. It is done at once, unless now=False; the handle does it again (`average()`), with
    the memory of the composition, reports, and has a state. All ranks call this alike, between the same steps.
    """
    _check_moments(small, seed, timeout_s, group)
    check_flag("moments", "now", now)
    moments = moments_of(composition)
    averaging = Averaging(AdamMoments(optimizer), moments, small=small, seed=seed)
    layers = [replace(s, shape=s.shape[1:]) for s in averaging.adam.layers if len(s.shape) > 2 and s.numel >= 2 * small]
    check_soundness("moments", layers, dict.fromkeys((s.name for s in layers), moments.exchange), group, bias=False)
    facts = {"moments": moments_text(moments), "setting": {"small": small, "seed": seed}}
    wire = MomentsWire(averaging, facts, timeout_s, group)
    if now:
        wire.average()
    return wire


def send_moments(
    optimizer: torch.optim.Optimizer,
    composition: str | Moments = "dense()",
    *,
    to: int,
    parameters: Iterable[Tensor] | None = None,
    small: int = SMALL,
    seed: int = 0,
    timeout_s: float = 60.0,
    group: Any = None,
) -> Traffic:
    """Send moments and step counters to rank `to`, which calls receive: `thinwire.moments.send`.

    parameters: the shard that moves; without, all of the optimizer's. composition: a compressor, or dense().
    Gives what it took.
    """
    return _move(optimizer, composition, parameters, small, seed, timeout_s, group, to, sends=True)


def receive_moments(
    optimizer: torch.optim.Optimizer,
    composition: str | Moments = "dense()",
    *,
    source: int,
    parameters: Iterable[Tensor] | None = None,
    small: int = SMALL,
    seed: int = 0,
    timeout_s: float = 60.0,
    group: Any = None,
) -> Traffic:
    """Take over the moments that rank `source` sends, with the same settings: `thinwire.moments.receive`.

    Parameters have the shapes of the sender's, in its order; that they made no step yet is no hindrance.
    """
    return _move(optimizer, composition, parameters, small, seed, timeout_s, group, source, sends=False)


def _move(
    optimizer: torch.optim.Optimizer,
    composition: str | Moments,
    parameters: Iterable[Tensor] | None,
    small: int,
    seed: int,
    timeout_s: float,
    group: Any,
    other: int,
    sends: bool,
) -> Traffic:
    _check_moments(small, seed, timeout_s, group)
    held = AdamMoments(optimizer, in_order(parameters, optimizer))
    return move(Moving(held, moments_of(composition), small=small, seed=seed), other, sends, timeout_s, group)


def _check_moments(small: Any, seed: Any, timeout_s: Any, group: Any) -> None:
    check_int("moments", "small", small, 0, "0 means none")
    check_int("moments", "seed", seed)
    check_timeout("moments", "timeout_s", timeout_s)
    check_group("moments", group)
