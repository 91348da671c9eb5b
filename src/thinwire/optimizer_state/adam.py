"""Where an Adam keeps its moments: reading them as pairs, writing them back, refusing what has none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import CompositionError, TensorSpec
from .transforms import floored, largest_update

_KEYS = {"step", "exp_avg", "exp_avg_sq"}


class Held(NamedTuple):
    """A parameter, and which group it is in: groups themselves are replaced when a state is loaded."""

    parameter: Tensor
    group: int


class AdamMoments:
    """The moments of an Adam or AdamW by name. Where a parameter has made no step yet, they are zeros."""

    def __init__(self, optimizer: torch.optim.Optimizer, named: Mapping[str, Tensor] | None = None) -> None:
        check_adam(optimizer)
        self.optimizer = optimizer
        groups = {id(p): at for at, group in enumerate(optimizer.param_groups) for p in group["params"]}
        named = numbered(optimizer) if named is None else named
        if strangers := [name for name, p in named.items() if id(p) not in groups]:
            raise CompositionError(f"moments: {strangers[0]} is no parameter of this optimizer")
        if not named:
            raise CompositionError("moments: the optimizer has no parameter that wants gradients")
        self.held = {name: Held(p, groups[id(p)]) for name, p in named.items()}
        for name, (parameter, _) in self.held.items():
            if not parameter.is_floating_point():
                raise CompositionError(f"moments: {name} is {parameter.dtype}; real numbers with a fraction are needed")

    @property
    def layers(self) -> list[TensorSpec]:
        """Forms of the pairs."""
        return [
            TensorSpec(name, (2, *one.parameter.shape), one.parameter.dtype, one.parameter.device)
            for name, one in self.held.items()
        ]

    def titles(self) -> dict[str, str]:
        """Names for readers: those the optimizer was given (named_parameters), else place and shape."""
        titles = {}
        for name, (parameter, at) in self.held.items():
            group = self.optimizer.param_groups[at]
            place = next(i for i, p in enumerate(group["params"]) if p is parameter)
            if name == f"{at}.{place}":  # see `numbered`
                by_place = f"group {at}, parameter {place} {list(parameter.shape)}"
                titles[name] = group["param_names"][place] if "param_names" in group else by_place
        return titles

    def betas(self, name: str) -> tuple[float, float]:
        first, second = self._group(name)["betas"]
        return float(first), float(second)

    def _group(self, name: str) -> Mapping[str, Any]:
        group: Mapping[str, Any] = self.optimizer.param_groups[self.held[name].group]
        return group

    def counter(self, name: str) -> float:
        """Steps made."""
        state = self.optimizer.state.get(self.held[name].parameter)
        return float(state["step"]) if state else 0.0

    def pair(self, name: str) -> Tensor:
        """m and v, in the type of the parameter: a copy."""
        parameter = self.held[name].parameter.detach()
        state = self.optimizer.state.get(self.held[name].parameter)
        if not state:
            return parameter.new_zeros((2, *parameter.shape))
        if odd := sorted(state.keys() - _KEYS):
            raise CompositionError(
                f"moments: the state of {name} has {', '.join(odd)}, too; Adam's m and v are carried"
            )
        return torch.stack([state["exp_avg"].to(parameter.dtype), state["exp_avg_sq"].to(parameter.dtype)])

    @torch.no_grad()
    def write(self, name: str, pair: Tensor, counter: float | None, floor: bool) -> None:
        """Take over a pair; with `floor`, v is nowhere less than this Adam could have left it beside m."""
        state = self._state(name)
        m, v = pair[0], pair[1]
        if floor:
            wide = torch.float64 if pair.dtype == torch.float64 else torch.float32
            v = floored(v.to(wide), m.to(wide), largest_update(*self.betas(name)))
        state["exp_avg"].copy_(m)
        state["exp_avg_sq"].copy_(v)
        if counter is not None:
            state["step"].fill_(counter)

    def _state(self, name: str) -> dict[str, Any]:
        """As Adam makes it at a first step."""
        parameter, group = self.held[name].parameter, self._group(name)
        state: dict[str, Any] = self.optimizer.state[parameter]
        if not state:
            device = parameter.device if group.get("capturable") or group.get("fused") else "cpu"
            state["step"] = torch.zeros((), dtype=torch.float32, device=device)
            for key in ("exp_avg", "exp_avg_sq"):
                state[key] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state


def check_adam(optimizer: torch.optim.Optimizer) -> None:
    if not isinstance(optimizer, torch.optim.Adam):  # AdamW is one
        raise CompositionError(
            f"moments: Adam's m and v are carried, got {type(optimizer).__name__}; torch.optim.Adam or AdamW would do"
        )
    for group in optimizer.param_groups:
        if group.get("amsgrad"):
            raise CompositionError(
                "moments: amsgrad=True keeps the largest v so far as well, which no average is; use amsgrad=False"
            )


def numbered(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Parameters that want gradients, named by their groups and places: all ranks have the same."""
    return {
        f"{at}.{place}": p
        for at, group in enumerate(optimizer.param_groups)
        for place, p in enumerate(group["params"])
        if p.requires_grad
    }


def in_order(parameters: Iterable[Tensor] | None, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The parameters of a shard by their places in it; without a list, all of the optimizer's that want gradients."""
    given = list(numbered(optimizer).values() if parameters is None else parameters)
    return {str(at): parameter for at, parameter in enumerate(given)}
