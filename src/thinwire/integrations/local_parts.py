"""What `local` takes, which parameters it carries, and how each of them travels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .. import __version__
from ..catalog import part_text
from ..catalog.patterns import Wanted, assigned
from ..core import (
    Aggregator,
    CompositionError,
    IncompatibleParts,
    TensorSpec,
    check_choice,
    check_flag,
    check_int,
    check_timeout,
    topology_of,
)
from ..optimizer_state import Moments, parse_moments
from ..sync import Local, sync_text
from .complex_layers import as_real
from .soundness import check_soundness
from .wire_options import ON_DIVERGENCE
from .wrappers import plain_of

BUFFERS = ("average", "local")
ZERO_MEANS = {"small": "none", "check_every": "never", "most_bad_rounds": "never"}
KEPT = ("local", "reset")  # what happens to the optimizer's state, if it is not averaged


@dataclass(frozen=True)
class LocalOptions:
    """What `local` takes beside the settings of its rounds."""

    buffers: str = "average"
    optimizer_state: str = "local"
    small: int = 0
    seed: int = 0
    check_every: int = 100
    on_divergence: str = "stop"
    most_bad_rounds: int = 10
    timeout_s: float = 60.0
    hooks: bool = True

    def __post_init__(self) -> None:
        check_choice("local", "buffers", self.buffers, BUFFERS)
        check_choice("local", "on_divergence", self.on_divergence, ON_DIVERGENCE)
        if not isinstance(self.optimizer_state, str):
            raise CompositionError(
                f"local: optimizer_state is a text, {', '.join(KEPT)} or a composition such as 'uniform(bits=8)', got "
                f"{self.optimizer_state!r}"
            )
        for name, zero in ZERO_MEANS.items():
            check_int("local", name, getattr(self, name), 0, f"0 means {zero}")
        check_int("local", "seed", self.seed)
        check_timeout("local", "timeout_s", self.timeout_s)
        check_flag("local", "hooks", self.hooks)


def settings_of(
    options: LocalOptions,
    settings: Local,
    optimizer: torch.optim.Optimizer,
    layers: Sequence[TensorSpec],
    rules: Mapping[str, Aggregator[Any]],
) -> dict[str, Any]:
    """In the order in which they are compared: causes before what follows from them."""
    return {
        "thinwire": __version__,
        "setting": {k: v for k, v in vars(options).items() if isinstance(v, int | float | str)},
        "optimizer": type(optimizer).__name__,
        "parameters in order": [layer.name for layer in layers],
        "parameter": {layer.name: f"{list(layer.shape)} {layer.dtype}" for layer in layers},
        "rounds": sync_text(settings, part_text),
        "exchange": {name: part_text(rule) for name, rule in rules.items()},
    }


def assign_rules(
    layers: Sequence[TensorSpec], exchange: Wanted | Mapping[str, Wanted], small: int, group: Any
) -> dict[str, Aggregator[Any]]:
    """An aggregator for every layer, checked for these layers."""
    rules = assigned(layers, exchange, small, "local", "exchange")
    check_soundness("local", layers, rules, group)
    return rules


def parse_optimizer_state(optimizer_state: str, payload: str) -> Moments | None:
    """How Adam's moments are averaged with each round; None if they stay each rank's own, or are dropped."""
    if optimizer_state in KEPT:
        return None
    if payload == "gradients":
        raise CompositionError(
            f'local: optimizer_state={optimizer_state!r} with payload="gradients": all ranks step with the same '
            'average, so their moments are the same; leave optimizer_state="local"'
        )
    try:
        return parse_moments(optimizer_state)
    except CompositionError as error:
        raise CompositionError(
            f"local: optimizer_state is {', '.join(KEPT)}, or a composition that averages Adam's moments: {error}"
        ) from None


def averaged_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Those that have a mean; complex ones as pairs of reals."""
    return {n: as_real(b) for n, b in model.named_buffers() if b.is_floating_point() or b.is_complex()}


def trained_parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The parameters that the optimizer changes, by name; a tied one has its first name, frozen ones are left out."""
    model = plain_of(model)
    if not hasattr(optimizer, "param_groups"):
        raise CompositionError(f"local: a torch.optim optimizer is needed, got {type(optimizer).__name__}")
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    named: dict[str, Tensor] = {n: p for n, p in model.named_parameters() if id(p) in held and p.requires_grad}
    strangers = len(held - {id(p) for p in model.parameters()})
    if strangers:
        raise CompositionError(
            f"local: {strangers} of the optimizer's parameters are not the model's; they would drift apart"
        )
    if not named:
        raise CompositionError("local: the optimizer has no parameter of this model that wants gradients")
    return named


def refuse_gossip_with_moments(rules: Mapping[str, Aggregator[Any]], optimizer_state: str) -> None:
    if any(topology_of(rule) is not None for rule in rules.values()):
        raise IncompatibleParts(
            f"local: optimizer_state={optimizer_state!r} averages over all ranks, and the exchange is a gossip among "
            'partners; use optimizer_state="local" with it'
        )


def refuse_closure(args: Any, kwargs: Any) -> None:
    """For gradients, which are averaged before the optimizer's step: a closure would compute others inside it."""
    if callable(kwargs.get("closure", args[1] if len(args) > 1 else None)):
        raise IncompatibleParts(
            'local: payload="gradients" averages gradients before optimizer.step(), and step(closure) computes them '
            'inside it; call backward() before step(), or use payload="deltas"'
        )
