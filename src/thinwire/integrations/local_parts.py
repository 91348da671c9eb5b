"""What `local` takes, which parameters it carries, and what it needs to know of rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .. import __version__
from ..core import CompositionError, Program, TensorSpec, World
from ..exchange import Exchanger
from .complex_layers import as_real
from .wire import ON_DIVERGENCE

BUFFERS = ("average", "local")
KEPT = ("local", "reset")  # what happens to the optimizer's state, if it is not averaged


class Merged(Protocol):
    """What became of a round on this rank."""

    @property
    def names(self) -> list[str]: ...
    @property
    def good(self) -> bool: ...
    @property
    def went_back(self) -> bool: ...


class Rounds(Protocol):
    """What a handle knows of `sync.Rounds`, which is given to it."""

    settings: Any
    exchanger: Exchanger
    anchor: dict[str, Tensor]
    flights: Any
    rounds: int
    bad_in_a_row: int
    mixes: bool
    lr: float | None

    def average_gradients(
        self, gradients: Mapping[str, Tensor], step: int, world: World
    ) -> Program[dict[str, Tensor]]: ...
    def before_step(self, step: int) -> Sequence[Merged]: ...
    def depart(self, step: int, world: World) -> Program[Any]: ...
    def carry(self, flight: Any, world: World) -> Program[None]: ...
    def merge(self, step: int) -> Sequence[Merged]: ...
    def average_if_due(self, step: int, world: World) -> Program[bool]: ...
    def consensus(self, step: int, world: World) -> Program[float]: ...
    def full_average(self, step: int, world: World) -> Program[bool]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
    def merged(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]: ...


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
        for name, known in (("buffers", BUFFERS), ("on_divergence", ON_DIVERGENCE)):
            if getattr(self, name) not in known:
                raise CompositionError(f"local: {name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")
        for name in ("small", "check_every", "most_bad_rounds"):
            if getattr(self, name) < 0:
                raise CompositionError(f"local: {name} must not be negative, got {getattr(self, name)}; 0 means never")


def settings_of(
    options: LocalOptions, optimizer: torch.optim.Optimizer, layers: Sequence[TensorSpec]
) -> dict[str, Any]:
    """In the order in which they are compared: causes before what follows from them."""
    return {
        "thinwire": __version__,
        "setting": {k: v for k, v in vars(options).items() if isinstance(v, int | float | str)},
        "optimizer": type(optimizer).__name__,
        "parameters in order": [layer.name for layer in layers],
        "parameter": {layer.name: f"{list(layer.shape)} {layer.dtype}" for layer in layers},
    }


def averaged_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Those that have a mean; complex ones as pairs of reals."""
    return {n: as_real(b) for n, b in model.named_buffers() if b.is_floating_point() or b.is_complex()}


def trained_parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The parameters that the optimizer changes, by name; a tied one has its first name, frozen ones are left out."""
    if isinstance(model, DistributedDataParallel):
        raise CompositionError(
            "local: this model is wrapped in DistributedDataParallel, which averages gradients at every step; give the "
            "plain module (model.module), or use attach to compress what DDP sends"
        )
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
