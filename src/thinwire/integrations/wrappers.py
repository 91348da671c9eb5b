"""What a model is wrapped in: `attach` needs DistributedDataParallel, and says what to do with anything else.

Frameworks are recognised by the modules and names of their classes, so that none has to be installed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..core import CompositionError
from ..core.torch_private import communication_hooks, module_inside, parameters_of, steps_in_backward

_USE_DDP = "wrap the plain module in DistributedDataParallel, and attach to that"


class Wrapper(NamedTuple):
    """A wrapper that `attach` does not take."""

    what: str
    remedy: str
    is_distributed: bool = True  # it divides or exchanges what `local` would exchange


def ddp_of(model: Any) -> DistributedDataParallel:
    """The DDP model that `attach` was given, as it is or compiled; what has no place for our hook is refused."""
    inside = module_inside(model)
    if not isinstance(inside, DistributedDataParallel):
        raise CompositionError(f"attach: a DistributedDataParallel model is needed, got {description(model)}")
    if inside.mixed_precision is not None:
        raise CompositionError(
            "attach: this DDP model was made with mixed_precision=..., which takes the only communication hook "
            "that DDP has; leave mixed_precision out and use torch.autocast in the forward pass"
        )
    if any(map(steps_in_backward, parameters_of(inside))):
        raise CompositionError(
            "attach: the optimizer of this model steps inside backward (_apply_optimizer_in_backward), through the "
            "only communication hook that DDP has; create the optimizer the usual way and call optimizer.step()"
        )
    if getattr(inside, "_thinwire_slot", None) is None and (hooks := communication_hooks(inside)):
        hook = getattr(hooks[0][0], "__qualname__", "one")
        raise CompositionError(
            f"attach: this DDP model has a communication hook already ({hook}), and DDP takes one only; do not call "
            "register_comm_hook, or wrap the module in a new DistributedDataParallel"
        )
    return inside


def plain_of(model: Any) -> nn.Module:
    """The module that `local` was given; one whose gradients or parameters a wrapper distributes is refused."""
    inside = module_inside(model)
    if isinstance(inside, DistributedDataParallel):
        raise CompositionError(
            "local: this model is wrapped in DistributedDataParallel, which averages gradients at every step; give the "
            "plain module (model.module), or use attach to compress what DDP sends"
        )
    wrapper = _wrapper(inside)
    if wrapper is not None and wrapper.is_distributed:
        raise CompositionError(
            f"local: a plain module is needed, got {wrapper.what}; give the module as it is before it is wrapped"
        )
    if not isinstance(inside, nn.Module):
        raise CompositionError(f"local: a torch.nn.Module is needed, got {type(inside).__name__}")
    if any(type(p.data).__name__ == "DTensor" for p in inside.parameters()):
        raise CompositionError(
            "local: this model has sharded parameters (DTensor), and every rank needs a whole copy; give a plain module"
        )
    return model  # type: ignore[no-any-return]


def description(model: Any) -> str:
    """What the model is, and what to do."""
    inside = module_inside(model)
    compiled = "" if inside is model else "torch.compile of "
    if (wrapper := _wrapper(inside)) is not None:
        return f"{compiled}{wrapper.what}; {wrapper.remedy}"
    if isinstance(inside, nn.Module):
        return (
            f"{compiled}{type(inside).__name__}, a plain module: wrap it first, DistributedDataParallel(model); or use "
            "thinwire.local(model, optimizer) to average every so many steps"
        )
    return f"{type(inside).__name__}, which is no torch.nn.Module"


def _wrapper(model: Any) -> Wrapper | None:
    """By the classes that the model's own derives from, the nearest first."""
    found = (_known(cls.__module__, cls.__name__, model) for cls in type(model).__mro__)
    return next((wrapper for wrapper in found if wrapper is not None), None)


def _known(module: str, name: str, model: Any) -> Wrapper | None:
    if module.startswith("torch.distributed._composable.replicate"):
        return Wrapper(
            "a module that composable replicate() has changed in place",
            "use DistributedDataParallel(module) instead of replicate(module)",
        )
    if module.startswith("torch.distributed.") and name in ("FSDPModule", "FullyShardedDataParallel"):
        way = "FSDP2, fully_shard" if name == "FSDPModule" else f"FSDP, {name}"
        return Wrapper(
            f"a module whose parameters are sharded ({way}), so that no rank has a whole gradient",
            f"thinwire does not carry shards; {_USE_DDP}",
        )
    if name == "_FabricModule":
        ready = isinstance(getattr(model, "_forward_module", None), DistributedDataParallel)
        remedy = "" if ready else 'use Fabric(strategy="ddp"), then '
        return Wrapper("a Lightning Fabric wrapper", f"{remedy}attach(model._forward_module, ...)")
    if name == "LightningModule":
        remedy = "attach to trainer.strategy.model in a callback's on_fit_start, where it is a DDP model"
        return Wrapper("a LightningModule", remedy, is_distributed=False)
    if module.split(".")[0] == "deepspeed":
        return Wrapper(f"DeepSpeed's {name}, which averages gradients itself", f"train without it: {_USE_DDP}")
    if name == "DataParallel" and module.startswith("torch."):
        remedy = f"start one process per device, {_USE_DDP}"
        return Wrapper("torch.nn.DataParallel, which runs in one process", remedy, is_distributed=False)
    return None
