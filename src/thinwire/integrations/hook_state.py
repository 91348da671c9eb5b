"""`HookState` and `hook`: thinwire as torch's own communication hooks are used, `register_comm_hook(state, hook)`.

DDP reads the annotations of a hook, so this module must not import annotations from __future__.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import GradBucket

from ..catalog.patterns import CompositionSpec
from ..core import ClosedError, CompositionError
from ..core.torch_private import module_inside
from .ddp_handle import DDPHandle
from .ddp_hook_slot import HookEntry, HookSlot, find_slot
from .ddp_options import DDPOptions
from .wrappers import find_ddp


class HookState:
    """The state of `thinwire.hook`, for scripts and recipes that register communication hooks themselves.

    `attach(model, composition)` does the same in one call. All ranks make it alike.

    Args:
        model: A `DistributedDataParallel` model. Leave it out where the model does not exist yet, and call `bind`
            before the first backward pass.
        composition: As for `attach`.
        **options: Further arguments of `attach`, such as `warmup_steps`.

    Raises:
        CompositionError: An argument is not valid, or the model is not a DDP model with a free communication hook.
        IncompatibleParts: The parts of the composition do not work together, or not with DDP.
        ConfigMismatch: Ranks passed different arguments, or have different models.
        PeerLostError: Not all ranks connected within `timeout_s`.

    Example:
        ```python
        state = thinwire.HookState(model, "ef(topk(density=0.01))")
        model.register_comm_hook(state, thinwire.hook)
        ...  # train as before
        print(state.handle.report())
        ```
    """

    def __init__(
        self,
        model: nn.Module | CompositionSpec | Mapping[str, CompositionSpec],
        composition: CompositionSpec | Mapping[str, CompositionSpec] | None = None,
        **options: Any,
    ) -> None:
        if composition is None and isinstance(model, nn.Module):
            raise CompositionError(
                'HookState: the composition is missing; HookState(model, "ef(topk(density=0.01))") is an example'
            )
        known = [field.name for field in fields(DDPOptions)]
        if unknown := [name for name in options if name not in known]:
            raise CompositionError(f"HookState: unknown option {unknown[0]!r}; the options are {', '.join(known)}")
        self._options = DDPOptions(**options)
        self._composition: Any = model if composition is None else composition
        self._entry: HookEntry | None = None  # refers to the handle weakly: DDP's reducer owns this state
        if composition is not None:
            self.bind(model)  # type: ignore[arg-type]  # checked there

    @property
    def handle(self) -> DDPHandle:
        """The handle of the model: `report()`, `metrics()`, `state_dict()`, `pause()`, ...

        Raises:
            CompositionError: The state has no model yet.
            ClosedError: The handle was detached, or the model no longer exists.
        """
        slot = self._get_entry().slot()
        if slot is None or slot.handle is None:
            raise ClosedError("HookState: the handle was detached, or its model no longer exists; attach again")
        return slot.handle

    def bind(self, model: nn.Module) -> DDPHandle:
        """Use this state for a DDP model, before or after `register_comm_hook`, and return its handle.

        Args:
            model: A `DistributedDataParallel` model, also one inside `torch.compile`.

        Raises:
            CompositionError: The state has a model already, or this one is no DDP model with a free communication hook.
        """
        if self._entry is not None:
            raise CompositionError("HookState: this state has a model already; make one state for each model")
        inside = module_inside(model)
        if find_slot(inside) is not None:
            raise CompositionError(
                "HookState: thinwire is attached to this model already; use handle.set_composition(...) or attach again"
            )
        ddp = find_ddp(model, "HookState", own_state=self)
        handle = DDPHandle(ddp, self._composition, self._options)
        slot = HookSlot.make(ddp)
        slot.set_handle(handle)
        self._entry = HookEntry(slot)
        return handle

    def exchange(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Exchange a bucket; `hook` calls it."""
        return self._get_entry().hook(None, bucket)

    def _get_entry(self) -> HookEntry:
        if self._entry is None:
            raise CompositionError("HookState: this state has no model yet; call bind(model) before the first backward")
        return self._entry


def hook(state: HookState, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Exchange the gradients of a bucket: the hook to register with a `HookState`.

    Args:
        state: A `HookState` that has a model.
        bucket: DDP's.

    Returns:
        A future of the bucket's averages.
    """
    return state.exchange(bucket)
