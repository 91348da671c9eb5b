"""A resumed run that forgot the handle's state: the optimizer has made steps, the memory is empty."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from torch import Tensor
from torch.optim.optimizer import Optimizer


def has_steps(optimizer: Optimizer, parameters: Iterable[Tensor]) -> bool:
    """Whether its state says that it has changed one of these parameters before."""
    states = [optimizer.state[parameter] for parameter in parameters if parameter in optimizer.state]
    return any(float(state.get("step", 0)) > 0 or state.get("momentum_buffer") is not None for state in states)


def warn_of_empty_memory(handle: str) -> None:
    warnings.warn(
        f"{handle}: the optimizer has made steps before, and this handle begins with an empty memory. If this is a "
        "resumed run, call the handle's load_state_dict() with the state_dict() that was saved, else what was not sent "
        "yet is lost; if compression begins here, this is right",
        stacklevel=3,
    )
