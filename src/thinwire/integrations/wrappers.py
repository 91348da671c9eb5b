"""Wrappers of models: `attach` needs DistributedDataParallel, `local` a plain module; errors say what to do.

Frameworks are recognized by the modules and names of their classes, so that none has to be installed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..core import CompositionError
from ..core.torch_private import communication_hooks, module_inside, parameters_of, steps_in_backward

_USE_DDP = "wrap the plain module in DistributedDataParallel, and attach to that"


class UnsupportedWrapper(NamedTuple):
    """A wrapper that `attach` does not support."""

    description: str
    remedy: str
    is_distributed: bool = True  # it shards or exchanges what `local` would exchange


def find_ddp(model: Any, caller: str = "attach", own_state: Any = None) -> DistributedDataParallel:
    """Return the DDP model that was passed to `attach`, also from inside torch.compile.

    Args:
        model: What was passed.
        caller: The function that errors name.
        own_state: The `HookState` whose hook may be registered already.

    Raises:
        CompositionError: It is no DDP model, or its communication hook is in use.
    """
    inside = module_inside(model)
    if not isinstance(inside, DistributedDataParallel):
        raise CompositionError(f"{caller}: model must be a DistributedDataParallel model, got {describe_model(model)}")
    if inside.mixed_precision is not None:
        raise CompositionError(
            f"{caller}: this DDP model was created with mixed_precision=..., which uses the only communication hook "
            "that DDP has; leave mixed_precision out and use torch.autocast in the forward pass"
        )
    if any(map(steps_in_backward, parameters_of(inside))):
        raise CompositionError(
            f"{caller}: the optimizer of this model steps inside backward (_apply_optimizer_in_backward), through the "
            "only communication hook that DDP has; create the optimizer the usual way and call optimizer.step()"
        )
    hooks = [pair for pair in communication_hooks(inside) if own_state is None or pair[1] is not own_state]
    if getattr(inside, "_thinwire_slot", None) is None and hooks:
        hook = getattr(hooks[0][0], "__qualname__", "one")
        raise CompositionError(
            f"{caller}: this DDP model already has a communication hook ({hook}), and DDP allows only one; do not call "
            "register_comm_hook, or wrap the module in a new DistributedDataParallel"
        )
    return inside


def find_plain_module(model: Any) -> nn.Module:
    """Return the module that was passed to `local`.

    Raises:
        CompositionError: A wrapper shards its parameters or exchanges its gradients.
    """
    inside = module_inside(model)
    if isinstance(inside, DistributedDataParallel):
        raise CompositionError(
            "local: this model is wrapped in DistributedDataParallel, which averages gradients in each step; pass the "
            "plain module (model.module), or use attach to compress what DDP sends"
        )
    wrapper = _find_wrapper(inside)
    if wrapper is not None and wrapper.is_distributed:
        raise CompositionError(
            f"local: model must be a plain module, got {wrapper.description}; pass the module before it is wrapped"
        )
    if not isinstance(inside, nn.Module):
        raise CompositionError(f"local: model must be a torch.nn.Module, got {type(inside).__name__}")
    if any(type(p.data).__name__ == "DTensor" for p in inside.parameters()):
        raise CompositionError(
            "local: this model has sharded parameters (DTensor), and each rank needs a full copy; pass a plain module"
        )
    return model  # type: ignore[no-any-return]


def describe_model(model: Any) -> str:
    """Return what the model is, and what to do."""
    inside = module_inside(model)
    compiled = "" if inside is model else "torch.compile of "
    if (wrapper := _find_wrapper(inside)) is not None:
        return f"{compiled}{wrapper.description}; {wrapper.remedy}"
    if isinstance(inside, nn.Module):
        return (
            f"{compiled}{type(inside).__name__}, a plain module: wrap it first, DistributedDataParallel(model); or use "
            "thinwire.local(model, optimizer) for Local SGD"
        )
    return f"{type(inside).__name__}, which is not a torch.nn.Module"


def _find_wrapper(model: Any) -> UnsupportedWrapper | None:
    """Search the base classes of the model, the nearest first."""
    found = (_recognize(cls.__module__, cls.__name__, model) for cls in type(model).__mro__)
    return next((wrapper for wrapper in found if wrapper is not None), None)


def _recognize(module: str, name: str, model: Any) -> UnsupportedWrapper | None:
    if module.startswith("torch.distributed._composable.replicate"):
        return UnsupportedWrapper(
            "a module that composable replicate() has changed in place",
            "use DistributedDataParallel(module) instead of replicate(module)",
        )
    if module.startswith("torch.distributed.") and name in ("FSDPModule", "FullyShardedDataParallel"):
        way = "FSDP2, fully_shard" if name == "FSDPModule" else f"FSDP, {name}"
        return UnsupportedWrapper(
            f"a module that is sharded ({way}), so that no rank has a complete gradient",
            f"thinwire does not support shards; {_USE_DDP}",
        )
    if name == "_FabricModule":
        ready = isinstance(getattr(model, "_forward_module", None), DistributedDataParallel)
        remedy = "" if ready else 'use Fabric(strategy="ddp"), then '
        return UnsupportedWrapper("a Lightning Fabric wrapper", f"{remedy}attach(model._forward_module, ...)")
    if name == "LightningModule":
        remedy = "attach to trainer.strategy.model in a callback's on_fit_start, where it is a DDP model"
        return UnsupportedWrapper("a LightningModule", remedy, is_distributed=False)
    if module.split(".")[0] == "deepspeed":
        return UnsupportedWrapper(
            f"DeepSpeed's {name}, which averages gradients itself", f"train without it: {_USE_DDP}"
        )
    if name == "DataParallel" and module.startswith("torch."):
        remedy = f"start one process per device, {_USE_DDP}"
        return UnsupportedWrapper("torch.nn.DataParallel, which runs in one process", remedy, is_distributed=False)
    return None
