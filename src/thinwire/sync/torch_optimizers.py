"""Classes of torch.optim as outer optimizers, with their own settings and an explicit state."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import field, fields, make_dataclass
from functools import reduce
from operator import or_
from types import NoneType
from typing import Any, ClassVar, get_origin

import torch
from torch import Tensor

from ..core import CompositionError, union_members

_PLAIN = (float, int, bool, str, NoneType)  # and tuples: the types that a text can express


class TorchOptimizer:
    """Builds a `source` optimizer for one parameter, takes a step, and returns its state by torch's names."""

    source: ClassVar[type[torch.optim.Optimizer]]

    def __post_init__(self) -> None:
        one = torch.zeros(1, 1)
        self.step(one, one, self.init(one))  # raises for wrong settings

    def init(self, weight: Tensor) -> dict[str, Any]:
        self._make_optimizer(weight)
        return {}

    def step(self, weight: Tensor, gradient: Tensor, state: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        parameter = weight.detach().clone()
        optimizer = self._make_optimizer(parameter)
        parameter.grad = gradient.clone()
        new_state = optimizer.state[parameter]
        new_state.update({name: value.clone() if isinstance(value, Tensor) else value for name, value in state.items()})
        self._call(optimizer.step)
        return parameter, {name: value for name, value in new_state.items() if value is not None}

    def _make_optimizer(self, parameter: Tensor) -> torch.optim.Optimizer:
        settings = {setting.name: getattr(self, setting.name) for setting in fields(self)}  # type: ignore[arg-type]
        made: torch.optim.Optimizer = self._call(lambda: self.source([parameter], **settings))
        return made

    def _call(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (TypeError, ValueError, RuntimeError, AttributeError) as error:
            name = self.source.__name__
            raise CompositionError(
                f"{name.lower()}: torch.optim.{name} cannot step one dense layer with these settings: {error}"
            ) from error


_CLASSES: dict[Any, type[TorchOptimizer]] = {}  # one class for each source, so that equal settings compare equal


def torch_class(source: type[torch.optim.Optimizer]) -> type[TorchOptimizer]:
    """The outer-optimizer class with those settings of `source` that a text can express."""
    if source not in _CLASSES:
        _CLASSES[source] = _make_class(source)
    return _CLASSES[source]


def _make_class(source: type[torch.optim.Optimizer]) -> type[TorchOptimizer]:
    signature = inspect.signature(source, eval_str=True)
    settings = [
        (name, hint, field(default=setting.default))
        for name, setting in signature.parameters.items()
        if name != "params" and (hint := _plain_hint(setting.annotation, setting.default)) is not None
    ]
    names = {"source": source, "__module__": source.__module__, "__doc__": f"torch.optim.{source.__name__}."}
    return make_dataclass(source.__name__, settings, bases=(TorchOptimizer,), namespace=names, frozen=True)


def from_torch(source: type[torch.optim.Optimizer], **settings: Any) -> TorchOptimizer:
    """Make an outer optimizer from a class of torch.optim, or of your own: from_torch(torch.optim.RMSprop, lr=0.01)."""
    try:
        return torch_class(source)(**settings)
    except TypeError as error:
        known = ", ".join(setting.name for setting in fields(torch_class(source)))  # type: ignore[arg-type]
        raise CompositionError(f"{source.__name__.lower()} has the settings {known}; got {settings}: {error}") from None


def torch_optimizers() -> dict[str, type[TorchOptimizer]]:
    """All optimizers of torch.optim, by their names in lower case."""
    found = {name: getattr(torch.optim, name) for name in sorted(dir(torch.optim)) if not name.startswith("_")}
    return {
        name.lower(): torch_class(cls)
        for name, cls in found.items()
        if isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer) and cls is not torch.optim.Optimizer
    }


def _plain_hint(hint: Any, default: Any) -> Any:
    """The types of a setting without those that no text can express (tensors); None if none is left."""
    if hint is inspect.Parameter.empty:
        hint = type(default) if isinstance(default, (*_PLAIN, tuple)) else NoneType
    plain = tuple(kind for kind in union_members(hint) if kind in _PLAIN or get_origin(kind) is tuple or kind is tuple)
    return reduce(or_, plain) if plain else None
