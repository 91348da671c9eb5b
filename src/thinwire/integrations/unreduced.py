"""Parameters with gradients that DDP reduces, and those that require gradients without being reduced."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Collection

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..core import CompositionError, Program
from ..core.torch_private import count_reduced_parameters, parameters_of
from .comparison import WRAP_AGAIN, shorten, weights_differ


def find_reduced_parameters(model: DistributedDataParallel) -> dict[Tensor, str]:
    """Return the parameters with gradients that DDP exchanges, and their names: neither ignored nor frozen."""
    known = {id(parameter) for parameter in parameters_of(model) if parameter.requires_grad}
    named: dict[Tensor, str] = {p: name for name, p in model.module.named_parameters() if id(p) in known}
    wrapped = count_reduced_parameters(model)
    if len(named) != wrapped:
        raise CompositionError(
            f"attach: {wrapped} parameters required gradients when DDP wrapped the model, {len(named)} do now; freeze "
            "and unfreeze parameters before wrapping, or wrap the model again"
        )
    return named


class UnreducedParameters:
    """Parameters that require gradients and that DDP does not reduce: unfrozen after wrapping, or ignored.

    They are looked up at each check, since a parameter may be unfrozen at any time; each is warned of once. A parameter
    that DDP was told to ignore may differ on purpose (a shard of a table), so it is no reason to stop.
    """

    def __init__(self, model: DistributedDataParallel, reduced: Collection[Tensor]) -> None:
        self._module = weakref.ref(model.module)  # the model holds the handle that holds this
        self._reduced = {id(parameter) for parameter in reduced}
        self.ignored = set(model.parameters_to_ignore) & {name for name, _ in model.module.named_parameters()}
        self._warned: set[str] = set()

    def find_unfrozen(self) -> dict[str, Tensor]:
        """Return those that were frozen, or absent, when DDP wrapped the model."""
        return {name: parameter for name, parameter in self._find().items() if name not in self.ignored}

    def warn_of(self, unfrozen: Collection[str]) -> None:
        """Warn of the unfrozen parameters that were not warned of before."""
        if new := [name for name in unfrozen if name not in self._warned]:
            self._warn(new, f"require gradients, and DDP does not reduce them: {WRAP_AGAIN}")

    def compare_ignored(self, step: int) -> Program[None]:
        """Warn once if ignored parameters differ; all ranks take part if DDP ignores any."""
        if not self.ignored or self._warned & self.ignored:
            return
        ignored = {name: parameter for name, parameter in self._find().items() if name in self.ignored}
        if (yield from weights_differ(list(ignored.values()), step)):
            self._warn(
                list(ignored),
                f"differ between ranks at step {step}; DDP was told to ignore them and does not reduce them",
            )

    def _find(self) -> dict[str, Tensor]:
        module: nn.Module | None = self._module()
        named = {} if module is None else dict(module.named_parameters())
        return {n: p for n, p in named.items() if p.requires_grad and id(p) not in self._reduced}

    def _warn(self, names: Collection[str], text: str) -> None:
        self._warned |= {*names} or self.ignored
        warnings.warn(f"thinwire: parameters {shorten(names or self.ignored)} {text}", stacklevel=2)
