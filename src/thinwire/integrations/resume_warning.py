"""Warning for a resumed run that did not load the handle's state: the optimizer has steps, the memory is empty."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from torch import Tensor
from torch.optim.optimizer import Optimizer


def has_steps(optimizer: Optimizer, parameters: Iterable[Tensor]) -> bool:
    """Whether the optimizer's state shows that it has updated one of these parameters before."""
    states = [optimizer.state[parameter] for parameter in parameters if parameter in optimizer.state]
    return any(float(state.get("step", 0)) > 0 or state.get("momentum_buffer") is not None for state in states)


def warn_of_empty_memory(handle: str) -> None:
    """Warn that residuals may have been lost."""
    warnings.warn(
        f"{handle}: the optimizer has made steps before, and this handle starts with an empty memory. In a resumed "
        "run, call the handle's load_state_dict() with the saved state_dict(), or the residuals are lost; if "
        "compression starts with this step, ignore this warning",
        stacklevel=3,
    )
