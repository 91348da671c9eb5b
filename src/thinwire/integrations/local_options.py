"""The options of `local`, and the parameters, buffers and compositions that follow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .. import __version__
from ..catalog import part_text
from ..catalog.patterns import CompositionSpec, assign_composition
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
from ..optimizer_state import AdamMoments, MomentsAveraging, MomentsConfig, parse_moments
from ..sync import Local, sync_text
from .complex_layers import as_real
from .ddp_options import ON_DIVERGENCE
from .soundness import check_soundness
from .wrappers import find_plain_module

BUFFERS = ("average", "local")
ZERO_MEANS = {
    "dense_below": "0 compresses all matrices", "check_weights_every": "0 disables the comparison",
    "max_bad_rounds": "0 disables the limit",
}  # fmt: skip
NOT_AVERAGED = ("local", "reset")  # values of optimizer_state that are not compositions


@dataclass(frozen=True)
class LocalOptions:
    """The arguments of `local` other than model, optimizer, composition and the settings of rounds."""

    buffers: str = "average"
    optimizer_state: str = "local"
    dense_below: int = 0
    seed: int = 0
    check_weights_every: int = 100
    on_divergence: str = "stop"
    max_bad_rounds: int = 10
    timeout_s: float = 60.0
    hooks: bool = True

    def __post_init__(self) -> None:
        check_choice("local", "buffers", self.buffers, BUFFERS)
        check_choice("local", "on_divergence", self.on_divergence, ON_DIVERGENCE)
        if not isinstance(self.optimizer_state, str):
            raise CompositionError(
                f"local: optimizer_state must be {', '.join(NOT_AVERAGED)} or a composition such as 'uniform(bits=8)', "
                f"got {self.optimizer_state!r}"
            )
        for name, zero in ZERO_MEANS.items():
            check_int("local", name, getattr(self, name), 0, zero)
        check_int("local", "seed", self.seed)
        check_timeout("local", "timeout_s", self.timeout_s)
        check_flag("local", "hooks", self.hooks)


def compared_settings(
    options: LocalOptions,
    settings: Local,
    optimizer: torch.optim.Optimizer,
    layers: Sequence[TensorSpec],
    rules: Mapping[str, Aggregator[Any]],
) -> dict[str, Any]:
    """The settings that ranks compare, in this order: causes before their consequences."""
    return {
        "thinwire": __version__,
        "setting": {k: v for k, v in vars(options).items() if isinstance(v, int | float | str)},
        "optimizer": type(optimizer).__name__,
        "parameters in order": [layer.name for layer in layers],
        "parameter": {layer.name: f"{list(layer.shape)} {layer.dtype}" for layer in layers},
        "rounds": sync_text(settings, part_text),
        "composition": {name: part_text(rule) for name, rule in rules.items()},
    }


def assign_rules(
    layers: Sequence[TensorSpec],
    composition: CompositionSpec | Mapping[str, CompositionSpec],
    dense_below: int,
    group: Any,
) -> dict[str, Aggregator[Any]]:
    """Return an aggregator for each layer, checked for these layers."""
    rules = assign_composition(layers, composition, dense_below, "local")
    check_soundness("local", layers, rules, group)
    return rules


def parse_optimizer_state(optimizer_state: str, payload: str) -> MomentsConfig | None:
    """How Adam's moments are averaged in each round; None if they are not."""
    if optimizer_state in NOT_AVERAGED:
        return None
    if payload == "gradients":
        raise CompositionError(
            f'local: optimizer_state={optimizer_state!r} with payload="gradients": all ranks step with the same '
            'average, so their moments are equal already; use optimizer_state="local"'
        )
    try:
        return parse_moments(optimizer_state)
    except CompositionError as error:
        raise CompositionError(
            f"local: optimizer_state must be {', '.join(NOT_AVERAGED)} or a composition for Adam's moments: {error}"
        ) from None


def averaged_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Floating-point buffers by name; complex ones as pairs of reals."""
    return {n: as_real(b) for n, b in model.named_buffers() if b.is_floating_point() or b.is_complex()}


def trained_parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Parameters that the optimizer updates, by name; a tied one has its first name, frozen ones are left out."""
    model = find_plain_module(model)
    if not hasattr(optimizer, "param_groups"):
        raise CompositionError(f"local: optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    named: dict[str, Tensor] = {n: p for n, p in model.named_parameters() if id(p) in held and p.requires_grad}
    foreign = len(held - {id(p) for p in model.parameters()})
    if foreign:
        raise CompositionError(
            f"local: {foreign} parameters of the optimizer are not the model's, so they would not be synchronized; "
            "pass an optimizer of this model's parameters only"
        )
    if not named:
        raise CompositionError("local: the optimizer has no parameter of this model that requires gradients")
    return named


def dense_gradients(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Gradients by name, dense and real; zeros where a parameter has none."""
    gradients = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in parameters.items()}
    return {n: as_real(g.to_dense() if g.layout != torch.strided else g) for n, g in gradients.items()}


def build_averaging(
    moments: MomentsConfig,
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, Tensor],
    rules: Mapping[str, Aggregator[Any]],
    options: LocalOptions,
) -> MomentsAveraging:
    """Return the averaging of Adam's moments in each round; raise if the composition is gossip."""
    averaging = MomentsAveraging(
        AdamMoments(optimizer, parameters), moments, dense_below=options.dense_below, seed=options.seed
    )
    if any(topology_of(rule) is not None for rule in rules.values()):
        raise IncompatibleParts(
            f"local: optimizer_state={options.optimizer_state!r} averages over all ranks, and the composition averages "
            'among neighbors (gossip); use optimizer_state="local" with it'
        )
    return averaging


def refuse_closure(args: Any, kwargs: Any) -> None:
    """Raise if a step with payload="gradients" has a closure: it would compute new gradients after the averaging."""
    if callable(kwargs.get("closure", args[1] if len(args) > 1 else None)):
        raise IncompatibleParts(
            'local: payload="gradients" averages gradients before optimizer.step(), and step(closure) computes them '
            'inside it; call backward() before step(), or use payload="deltas"'
        )
