"""Reading and writing the moments of torch.optim.Adam and AdamW as pairs (m, v)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import CompositionError, TensorSpec
from .transforms import apply_floor, max_update

_KEYS = {"step", "exp_avg", "exp_avg_sq"}


class AdamParameter(NamedTuple):
    """A parameter and the index of its group; the groups themselves are replaced when a state is loaded."""

    parameter: Tensor
    group: int


class AdamMoments:
    """The moments of an Adam or AdamW by parameter name; zeros for a parameter without a step."""

    def __init__(self, optimizer: torch.optim.Optimizer, named: Mapping[str, Tensor] | None = None) -> None:
        check_adam(optimizer)
        self.optimizer = optimizer
        groups = {id(p): at for at, group in enumerate(optimizer.param_groups) for p in group["params"]}
        named = name_by_position(optimizer) if named is None else named
        if foreign := [name for name, p in named.items() if id(p) not in groups]:
            raise CompositionError(f"moments: {foreign[0]} is not a parameter of this optimizer")
        if not named:
            raise CompositionError("moments: the optimizer has no parameter that requires gradients")
        self.parameters = {name: AdamParameter(p, groups[id(p)]) for name, p in named.items()}
        for name, (parameter, _) in self.parameters.items():
            if not parameter.is_floating_point():
                raise CompositionError(
                    f"moments: {name} is {parameter.dtype}; parameters must be real and floating-point"
                )

    @property
    def layers(self) -> list[TensorSpec]:
        """Specs of the pairs, (2, *shape)."""
        return [
            TensorSpec(name, (2, *one.parameter.shape), one.parameter.dtype, one.parameter.device)
            for name, one in self.parameters.items()
        ]

    def titles(self) -> dict[str, str]:
        """Names for reports: those passed to the optimizer (named_parameters), else position and shape."""
        titles = {}
        for name, (parameter, at) in self.parameters.items():
            group = self.optimizer.param_groups[at]
            position = next(i for i, p in enumerate(group["params"]) if p is parameter)
            if name == f"{at}.{position}":  # see `name_by_position`
                by_position = f"group {at}, parameter {position} {list(parameter.shape)}"
                titles[name] = group["param_names"][position] if "param_names" in group else by_position
        return titles

    def betas(self, name: str) -> tuple[float, float]:
        """The betas of a parameter's group."""
        first, second = self._group(name)["betas"]
        return float(first), float(second)

    def _group(self, name: str) -> Mapping[str, Any]:
        group: Mapping[str, Any] = self.optimizer.param_groups[self.parameters[name].group]
        return group

    def counter(self, name: str) -> float:
        """Number of steps made."""
        state = self.optimizer.state.get(self.parameters[name].parameter)
        return float(state["step"]) if state else 0.0

    def pair(self, name: str) -> Tensor:
        """Return a copy of m and v, (2, *shape), in the dtype of the parameter."""
        parameter = self.parameters[name].parameter.detach()
        state = self.optimizer.state.get(self.parameters[name].parameter)
        if not state:
            return parameter.new_zeros((2, *parameter.shape))
        if odd := sorted(state.keys() - _KEYS):
            raise CompositionError(
                f"moments: the state of {name} also has {', '.join(odd)}; only Adam's m and v can be sent"
            )
        return torch.stack([state["exp_avg"].to(parameter.dtype), state["exp_avg_sq"].to(parameter.dtype)])

    @torch.no_grad()
    def write(self, name: str, pair: Tensor, counter: float | None, floor: bool) -> None:
        """Store a pair; with `floor`, v is at least the smallest value that Adam could have beside this m."""
        state = self._state(name)
        m, v = pair[0], pair[1]
        if floor:
            wide = torch.float64 if pair.dtype == torch.float64 else torch.float32
            v = apply_floor(v.to(wide), m.to(wide), max_update(*self.betas(name)))
        state["exp_avg"].copy_(m)
        state["exp_avg_sq"].copy_(v)
        if counter is not None:
            state["step"].fill_(counter)

    def _state(self, name: str) -> dict[str, Any]:
        """Return the state of a parameter; create it as Adam does in its first step."""
        parameter, group = self.parameters[name].parameter, self._group(name)
        state: dict[str, Any] = self.optimizer.state[parameter]
        if not state:
            device = parameter.device if group.get("capturable") or group.get("fused") else "cpu"
            state["step"] = torch.zeros((), dtype=torch.float32, device=device)
            for key in ("exp_avg", "exp_avg_sq"):
                state[key] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state


def check_adam(optimizer: torch.optim.Optimizer) -> None:
    """Raise CompositionError unless the optimizer is an Adam or AdamW without amsgrad."""
    if not isinstance(optimizer, torch.optim.Adam):  # AdamW is one
        raise CompositionError(
            f"moments: optimizer must be a torch.optim.Adam or AdamW, got {type(optimizer).__name__}"
        )
    for group in optimizer.param_groups:
        if group.get("amsgrad"):
            raise CompositionError(
                "moments: amsgrad=True keeps the largest v so far, which cannot be averaged; use amsgrad=False"
            )


def name_by_position(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Parameters that require gradients, named by group and position, so that names agree over ranks."""
    return {
        f"{at}.{position}": p
        for at, group in enumerate(optimizer.param_groups)
        for position, p in enumerate(group["params"])
        if p.requires_grad
    }


def name_shard(parameters: Iterable[Tensor] | None, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Name the parameters of a shard by position.

    Args:
        parameters: The parameters; None: all of the optimizer's that require gradients.
        optimizer: The optimizer that they belong to.

    Returns:
        "0", "1", ... and the parameters, in their order.
    """
    shard = name_by_position(optimizer).values() if parameters is None else parameters
    return {str(at): parameter for at, parameter in enumerate(shard)}
