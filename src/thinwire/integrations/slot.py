"""DDP has one place for a hook, for ever: this is what sits in it, and what it holds may change.

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
from .resuming import has_steps, warn_of_empty_memory
from .wire import REPLACED, Wire


class Slot:
    """Hands buckets to the wire it holds; without one it averages as DDP does. A copied model's slot is empty."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self.wire: Wire | None = None
        self.reducer: Callable[[], Any] = weakref.ref(reducer_of(model))
        self.group: Any = model.process_group

    @classmethod
    def of(cls, model: DistributedDataParallel) -> "Slot":
        """The model's slot, registered with DDP if there is none yet; `wrappers.ddp_of` has checked that it can be."""
        slot = getattr(model, "_thinwire_slot", None)
        if isinstance(slot, cls) and slot.reducer() is reducer_of(model):
            return slot
        if slot is not None:
            communication_hooks(model).clear()  # a copy: DDP remembers the hook of the original, but does not call it
        slot = cls(model)
        model.register_comm_hook(None, Door(slot).hook)
        model.register_forward_pre_hook(_tell_copies)
        object.__setattr__(model, "_thinwire_slot", slot)
        _slots.add(slot)
        return slot

    def hold(self, wire: Wire | None) -> None:
        """From the next step on; the wire that was held finishes what it has begun, and is detached then."""
        before, self.wire = self.wire, wire
        if before is not None:
            before.detached = "was detached" if wire is None else REPLACED
            before.driver.close()
        if wire is not None:
            wire.let_go = lambda: self.hold(None)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Slot":
        return _empty()  # connections and threads have no copies

    def __reduce__(self) -> tuple[Any, ...]:
        return _empty, ()


def _empty() -> Slot:
    """The slot of a copied model, which DDP does not call."""
    slot = object.__new__(Slot)
    slot.wire, slot.reducer, slot.group = None, lambda: None, None
    return slot


class Door:
    """What DDP calls. It knows its slot weakly: what DDP's reducer holds for ever must not hold the reducer."""

    def __init__(self, slot: Slot) -> None:
        self.slot, self.group = weakref.ref(slot), slot.group

    def hook(self, state: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        slot = self.slot()
        wire = None if slot is None else slot.wire
        return allreduce_hook(self.group, bucket) if wire is None else wire.hook.hook(bucket)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Door":
        return Door(_empty())

    def __reduce__(self) -> tuple[Any, ...]:
        return Door, (_empty(),)


def _tell_copies(model: DistributedDataParallel, inputs: Any) -> None:
    """A copied model (deepcopy, saved and loaded whole) remembers hooks that DDP does not call: say so once."""
    slot = getattr(model, "_thinwire_slot", None)
    known = slot is not None and slot.reducer() is reducer_of(model)
    if not known and model.training and torch.is_grad_enabled() and not getattr(model, "_thinwire_told", False):
        object.__setattr__(model, "_thinwire_told", True)
        warnings.warn(
            "this DDP model is a copy of one that thinwire was attached to; its gradients travel dense. "
            "Call thinwire.attach(model, ...) for the copy, and load_state_dict() to go on with the memory",
            stacklevel=3,
        )


def _drop_bad_gradients(optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
    """After a bad step all gradients are NaN on all ranks; an optimizer without a test of its own leaves it out.

    A closure computes gradients inside the optimizer's step, maybe several times: it drops them itself. An optimizer
    takes a dropped gradient as none, LBFGS as zero, with which it ends its iterations.
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
        if slot.wire is not None and not slot.wire.hook.good:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter in slot.wire.parameters:
                        parameter.grad = None


def _tell_learning_rate(optimizer: Optimizer, *_: Any) -> None:
    """Those who choose what is sent may want to know it: the largest of the groups that hold a wire's parameters."""
    for slot in list(_slots):
        if slot.wire is None or not slot.wire.compressed.menus:
            continue
        known = slot.wire.parameters
        rates = [float(g["lr"]) for g in optimizer.param_groups if "lr" in g and any(p in known for p in g["params"])]
        if rates:
            slot.wire.note_learning_rate(max(rates))


def _tell_empty_memory(optimizer: Optimizer, *_: Any) -> None:
    """At a handle's first step: an optimizer that has made steps before may be one of a resumed run."""
    for slot in list(_slots):
        wire = slot.wire
        if wire is None or not wire.fresh:
            continue
        known = [p for group in optimizer.param_groups for p in group["params"] if p in wire.parameters]
        if known:
            wire.fresh = False
            if wire.remembers and has_steps(optimizer, known):
                warn_of_empty_memory("attach")


_slots: "weakref.WeakSet[Slot]" = weakref.WeakSet()
register_optimizer_step_pre_hook(_drop_bad_gradients)
register_optimizer_step_pre_hook(_tell_learning_rate)
register_optimizer_step_pre_hook(_tell_empty_memory)
