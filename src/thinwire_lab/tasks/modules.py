"""The learner of tasks with a torch module that scores classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from thinwire.core import CompositionError
from thinwire.importance import ModuleObjective, Objective, preserve_model

Batch = tuple[Tensor, Tensor]  # inputs of the model, and the target class of each row of scores


class ModuleLearner:
    """A model, a function that gives the batch of a step, and a function that computes held-out metrics."""

    def __init__(
        self,
        model: nn.Module,
        batch: Callable[[int], Batch],
        figures: Callable[[nn.Module], dict[str, float]],
    ) -> None:
        self.model, self.batch, self._figures = model, batch, figures
        self.parameters: dict[str, Tensor] = dict(model.named_parameters())

    def gradients(self, step: int) -> tuple[float, dict[str, Tensor]]:
        self.model.train()
        loss = mean_loss(self.model, self.batch(step))
        found = torch.autograd.grad(loss, list(self.parameters.values()))
        plain = (gradient.contiguous() for gradient in found)  # they may have memory format channels_last
        return float(loss.detach()), dict(zip(self.parameters, plain, strict=True))

    def measure(self) -> dict[str, float]:
        with preserve_model(self.model), torch.no_grad():
            self.model.train(False)
            return self._figures(self.model)

    def objective(self, step: int) -> Objective:
        batch = self.batch(step)  # made once, because a solver evaluates it many times

        def closure(model: nn.Module) -> Tensor:
            model.train()
            return mean_loss(model, batch)

        return ModuleObjective(self.model, closure)

    def state_dict(self) -> dict[str, Any]:
        return {name: buffer.clone() for name, buffer in self.model.named_buffers()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        buffers = dict(self.model.named_buffers())
        if state.keys() != buffers.keys():
            raise CompositionError(f"the model has the buffers {sorted(buffers)}, the stored state has {sorted(state)}")
        with torch.no_grad():
            for name, buffer in buffers.items():
                buffer.copy_(state[name])


def mean_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross entropy over all rows of scores."""
    inputs, targets = batch
    return cross_entropy(model(inputs).flatten(0, -2), targets.flatten())


def evaluate(model: nn.Module, batches: Iterable[Batch]) -> tuple[float, float]:
    """Mean loss and accuracy over all rows of all batches; does not change the mode of the model."""
    loss, right, count = 0.0, 0, 0
    for inputs, targets in batches:
        scores, wanted = model(inputs).flatten(0, -2), targets.flatten()
        loss += float(cross_entropy(scores, wanted, reduction="sum"))
        right += int((scores.argmax(-1) == wanted).sum())
        count += len(wanted)
    return loss / count, right / count


def count_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())
