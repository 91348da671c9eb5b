"""What a trial step is judged by: a plain function, or the loss of a module on a held minibatch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ..core.torch_private import buffers_of

Point = Mapping[str, Tensor]  # parameters by name


class Objective(Protocol):
    """f and its gradient at points near the present one. The same point gives the same answer, and nothing changes."""

    def value(self, at: Point) -> float: ...

    def value_and_gradient(self, at: Point) -> tuple[float, Point]: ...


@dataclass(frozen=True, eq=False)
class FunctionObjective:
    """Plain functions of the parameters by name."""

    function: Callable[[Point], Any]
    gradient: Callable[[Point], Point]

    def value(self, at: Point) -> float:
        return float(self.function(at))

    def value_and_gradient(self, at: Point) -> tuple[float, Point]:
        return float(self.function(at)), self.gradient(at)


@dataclass(frozen=True, eq=False)
class ModuleObjective:
    """The loss `closure(model)` with other parameters in the model, by name; those not named keep their values.

    The closure computes a loss on a minibatch it holds; it calls no backward. Afterwards all is bitwise as before:
    parameters, .grad, buffers, training flags, and the random states of torch, numpy and Python; so every trial has
    the same dropout noise. Give the bare module, not one wrapped by DDP, and ask outside backward.
    """

    model: nn.Module
    closure: Callable[[nn.Module], Tensor]

    def point(self) -> dict[str, Tensor]:
        """The parameters that train, as they are now."""
        return {name: p.detach() for name, p in self.model.named_parameters() if p.requires_grad}

    def value(self, at: Point) -> float:
        with untouched(self.model), torch.no_grad():
            self._enter(at)
            return float(self.closure(self.model))

    def value_and_gradient(self, at: Point) -> tuple[float, Point]:
        with untouched(self.model), torch.enable_grad():
            moved = self._enter(at)
            loss = self.closure(self.model)
            found = torch.autograd.grad(loss, list(moved.values()), allow_unused=True)
            pairs = zip(moved.items(), found, strict=True)
            gradient = {name: torch.zeros_like(p.data) if g is None else g.detach() for (name, p), g in pairs}
            return float(loss.detach()), gradient

    def _enter(self, at: Point) -> dict[str, nn.Parameter]:
        parameters = dict(self.model.named_parameters())
        if unknown := sorted(at.keys() - parameters.keys()):
            raise KeyError(f"the model has no parameters {unknown}; it has {list(parameters)}")
        for name, tensor in at.items():
            parameters[name].data = tensor.to(parameters[name].dtype)
        return {name: parameters[name] for name in at}


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Whatever happens to the model and to random states inside is undone on leaving."""
    parameters = [(p, p.data, p.grad) for p in model.parameters()]
    modules = list(model.modules())
    modes = [module.training for module in modules]
    buffers = [(m, name, b) for m in modules for name, b in buffers_of(m).items()]
    contents = [None if b is None else b.clone() for _, _, b in buffers]
    try:
        with same_randomness():
            for p, _, _ in parameters:
                p.grad = None  # should a closure call backward, it adds to nothing that is needed
            yield
    finally:
        for p, data, grad in parameters:
            p.data, p.grad = data, grad
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode
        for (module, name, buffer), content in zip(buffers, contents, strict=True):
            buffers_of(module)[name] = buffer
            if buffer is not None and content is not None:
                with torch.no_grad():
                    buffer.copy_(content)


@contextmanager
def same_randomness() -> Iterator[None]:
    """Draws inside leave no trace: the random states of torch, its GPUs if in use, numpy and Python are put back."""
    python, numpy_state, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    gpus = torch.cuda.get_rng_state_all() if in_use else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy_state)
        torch.set_rng_state(cpu)
        if gpus is not None:
            torch.cuda.set_rng_state_all(gpus)
