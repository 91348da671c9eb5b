"""DDP allows one communication hook per model and no removal. `HookSlot` is that hook; its handle can be exchanged.

DDP reads the annotations of a hook, so this module must not import annotations from __future__.
"""

import functools
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from ..core.torch_private import communication_hooks, reducer_of
from .ddp_handle import REPLACED, DDPHandle
from .resume_warning import has_steps, warn_of_empty_memory


class HookSlot:
    """Passes buckets to its handle; without a handle it averages as DDP does. A copied model has an empty slot."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self.handle: DDPHandle | None = None
        self.reducer: Callable[[], Any] = weakref.ref(reducer_of(model))
        self.group: Any = model.process_group

    @classmethod
    def of(cls, model: DistributedDataParallel) -> "HookSlot":
        """The model's slot; the first call registers it with DDP. `find_ddp` has checked that DDP allows it."""
        slot = find_slot(model)
        if slot is not None and slot.reducer() is not reducer_of(model):
            communication_hooks(model).clear()  # a copied model: DDP lists the original's hook but does not call it
            slot = None
        slot = slot or cls.make(model)
        if not communication_hooks(model):  # the hook of a HookState may never have been registered
            model.register_comm_hook(None, HookEntry(slot).hook)
        return slot

    @classmethod
    def make(cls, model: DistributedDataParallel) -> "HookSlot":
        """A slot for the model, which DDP does not call yet."""
        slot = cls(model)
        _register_optimizer_hooks()
        model.register_forward_pre_hook(_warn_of_copied_model)
        object.__setattr__(model, "_thinwire_slot", slot)
        _slots.add(slot)
        return slot

    def set_handle(self, handle: DDPHandle | None) -> None:
        """Use this handle from the next step on; the previous one completes its exchanges and is detached."""
        previous, self.handle = self.handle, handle
        if previous is not None:
            previous.detached = "was detached" if handle is None else REPLACED
            previous.driver.close()
        if handle is not None:
            handle.leave_slot = lambda: self.set_handle(None)

    def __deepcopy__(self, memo: dict[int, Any]) -> "HookSlot":
        return _make_empty_slot()  # connections and threads cannot be copied

    def __reduce__(self) -> tuple[Any, ...]:
        return _make_empty_slot, ()


def find_slot(model: Any) -> HookSlot | None:
    """The slot of a model, also a copied one; None if it has none."""
    slot = getattr(model, "_thinwire_slot", None)
    return slot if isinstance(slot, HookSlot) else None


def _make_empty_slot() -> HookSlot:
    """The slot of a copied model, which DDP does not call."""
    slot = object.__new__(HookSlot)
    slot.handle, slot.reducer, slot.group = None, lambda: None, None
    return slot


class HookEntry:
    """The function that DDP calls. It references its slot weakly: DDP's reducer owns it and must not own itself."""

    def __init__(self, slot: HookSlot) -> None:
        self.slot, self.group = weakref.ref(slot), slot.group

    def hook(self, state: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        slot = self.slot()
        handle = None if slot is None else slot.handle
        return allreduce_hook(self.group, bucket) if handle is None else handle.hook.hook(bucket)

    def __deepcopy__(self, memo: dict[int, Any]) -> "HookEntry":
        return HookEntry(_make_empty_slot())

    def __reduce__(self) -> tuple[Any, ...]:
        return HookEntry, (_make_empty_slot(),)


def _warn_of_copied_model(model: DistributedDataParallel, inputs: Any) -> None:
    """Warn once that a copied model (deepcopy, or saved and loaded whole) lists a hook that DDP does not call."""
    slot = getattr(model, "_thinwire_slot", None)
    is_original = slot is not None and slot.reducer() is reducer_of(model)
    has_warned = getattr(model, "_thinwire_has_warned", False)
    if not is_original and model.training and torch.is_grad_enabled() and not has_warned:
        object.__setattr__(model, "_thinwire_has_warned", True)
        warnings.warn(
            "this DDP model is a copy of a model that thinwire was attached to; its gradients are averaged dense. Call "
            "thinwire.attach(model, ...) for the copy, and load_state_dict() to continue with the memory",
            stacklevel=3,
        )


def _drop_bad_gradients(optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
    """Make the optimizer skip a bad step: all gradients are NaN on all ranks then, and are set to None.

    A closure computes gradients inside the optimizer's step, possibly several times, so it is wrapped. Optimizers treat
    a gradient of None as absent; LBFGS treats it as zero and ends its iterations.
    """
    _drop(optimizer)
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if not _slots or not callable(closure):
        return None

    @functools.wraps(closure)
    def guarded(*inputs: Any, **named: Any) -> Any:
        loss = closure(*inputs, **named)
        _drop(optimizer)
        return loss

    return (args, {**kwargs, "closure": guarded}) if "closure" in kwargs else ((args[0], guarded, *args[2:]), kwargs)


def _drop(optimizer: Optimizer) -> None:
    for slot in list(_slots):
        if slot.handle is not None and not slot.handle.hook.good:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter in slot.handle.parameters:
                        parameter.grad = None


def _note_learning_rate(optimizer: Optimizer, *_: Any) -> None:
    """Pass the learning rate to handles with a controller: the largest of the groups that hold their parameters."""
    for slot in list(_slots):
        if slot.handle is None or not slot.handle.exchanger.menus:
            continue
        known = slot.handle.parameters
        rates = [float(g["lr"]) for g in optimizer.param_groups if "lr" in g and any(p in known for p in g["params"])]
        if rates:
            slot.handle.note_learning_rate(max(rates))


def _warn_of_lost_memory(optimizer: Optimizer, *_: Any) -> None:
    """In a handle's first step, warn if the optimizer has made steps before: the run may have been resumed."""
    for slot in list(_slots):
        handle = slot.handle
        if handle is None or not handle.is_fresh:
            continue
        known = [p for group in optimizer.param_groups for p in group["params"] if p in handle.parameters]
        if known:
            handle.is_fresh = False
            if handle.has_memory and has_steps(optimizer, known):
                warn_of_empty_memory("attach")


@functools.cache
def _register_optimizer_hooks() -> None:
    """Once per process, at the first `attach`: the hooks are called in every step of every optimizer."""
    for hook in (_drop_bad_gradients, _note_learning_rate, _warn_of_lost_memory):
        register_optimizer_step_pre_hook(hook)


_slots: "weakref.WeakSet[HookSlot]" = weakref.WeakSet()
