"""Objectives of the importance solver: a function of the parameters, or the loss of a module on one minibatch."""

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
    """A loss f and its gradient at given parameters. Deterministic and without side effects."""

    def value(self, at: Point) -> float: ...

    def value_and_gradient(self, at: Point) -> tuple[float, Point]: ...


@dataclass(frozen=True, eq=False)
class FunctionObjective:
    """An objective from two functions of the parameters by name: the loss and its gradient."""

    function: Callable[[Point], Any]
    gradient: Callable[[Point], Point]

    def value(self, at: Point) -> float:
        return float(self.function(at))

    def value_and_gradient(self, at: Point) -> tuple[float, Point]:
        return float(self.function(at)), self.gradient(at)


@dataclass(frozen=True, eq=False)
class ModuleObjective:
    """The loss `closure(model)` with trial parameters in the model; parameters that are not named keep their values.

    Afterwards everything is restored bit for bit: parameters, .grad, buffers, training flags, and the random states of
    torch, numpy and Python, so that all trials have the same dropout noise. Do not use it inside backward.

    Args:
        model: the module itself, not one wrapped by DDP.
        closure: computes the loss on one minibatch that it holds, without calling backward.
    """

    model: nn.Module
    closure: Callable[[nn.Module], Tensor]

    def point(self) -> dict[str, Tensor]:
        """Return the present values of the parameters that require gradients."""
        return {name: p.detach() for name, p in self.model.named_parameters() if p.requires_grad}

    def value(self, at: Point) -> float:
        with preserve_model(self.model), torch.no_grad():
            self._load(at)
            return float(self.closure(self.model))

    def value_and_gradient(self, at: Point) -> tuple[float, Point]:
        with preserve_model(self.model), torch.enable_grad():
            loaded = self._load(at)
            loss = self.closure(self.model)
            gradients = torch.autograd.grad(loss, list(loaded.values()), allow_unused=True)
            pairs = zip(loaded.items(), gradients, strict=True)
            gradient = {name: torch.zeros_like(p.data) if g is None else g.detach() for (name, p), g in pairs}
            return float(loss.detach()), gradient

    def _load(self, at: Point) -> dict[str, nn.Parameter]:
        parameters = dict(self.model.named_parameters())
        if unknown := sorted(at.keys() - parameters.keys()):
            raise KeyError(f"the model has no parameters {unknown}; it has {list(parameters)}")
        for name, tensor in at.items():
            parameters[name].data = tensor.to(parameters[name].dtype)
        return {name: parameters[name] for name in at}


@contextmanager
def preserve_model(model: nn.Module) -> Iterator[None]:
    """Context manager: restore the model and the random states on exit, whatever happened inside."""
    parameters = [(p, p.data, p.grad) for p in model.parameters()]
    modules = list(model.modules())
    modes = [module.training for module in modules]
    buffers = [(m, name, b) for m in modules for name, b in buffers_of(m).items()]
    contents = [None if b is None else b.clone() for _, _, b in buffers]
    try:
        with preserve_rng_state():
            for p, _, _ in parameters:
                p.grad = None  # a closure that calls backward must not add to the gradients of training
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
def preserve_rng_state() -> Iterator[None]:
    """Context manager: restore the random states of torch (CPU, and GPUs if in use), numpy and Python on exit."""
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
