"""The private APIs of torch that thinwire uses, one function each; `SEEN_IN` has the versions that have them.

torch may rename or remove any of them without notice. A missing one is an `UnsupportedTorch` error that names it. No
other file of the package reads a private name of torch (tests/unit/test_private_names.py), and `make test-versions`
runs what uses them on the oldest and on the newest torch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel

from .errors import UnsupportedTorch

_ALL = ("2.10", "2.15")

SEEN_IN = {  # the first and the last release in which it was found; releases between them have it, too
    "torch._C._current_graph_task_id": _ALL,
    "torch.autograd.Variable._execution_engine": _ALL,
    "Tensor._values": _ALL,
    "Module._buffers": _ALL,
    "GradScaler._scale": _ALL,
    "OptimizedModule._orig_mod": _ALL,
    "DistributedDataParallel._comm_hooks": _ALL,
    "DistributedDataParallel._module_parameters": _ALL,
    "DistributedDataParallel._get_ddp_logging_data": _ALL,
    "DistributedDataParallel._static_graph_delay_allreduce_enqueued": _ALL,
    "DistributedDataParallel.reducer": _ALL,  # no underscore, and not documented
    "Reducer._get_local_used_map": _ALL,
    "Reducer._get_zeros_like_grad_buckets": _ALL,
    "Parameter._in_backward_optimizers": _ALL,
    "distributed_c10d._get_default_store": _ALL,
    "torch.utils._python_dispatch": _ALL,
}


def _get(owner: Any, api: str) -> Any:
    """The attribute of `owner` by which `api` ends."""
    try:
        return getattr(owner, api.rpartition(".")[2])
    except AttributeError:
        raise UnsupportedTorch(_missing(api)) from None


def _missing(api: str) -> str:
    first, last = SEEN_IN[api]
    major, minor = map(int, last.split("."))
    return (
        f"torch {torch.__version__} has no {api}, which thinwire uses; it was seen in torch {first} to {last}. "
        f"Install one of these (pip install 'torch>={first},<{major}.{minor + 1}'), and report it to thinwire"
    )


def is_in_backward() -> bool:
    """Whether this thread is inside a backward pass."""
    return bool(_graph_task()() >= 0)


@cache  # called in every step
def _graph_task() -> Callable[[], int]:
    task_id: Callable[[], int] = _get(torch._C, "torch._C._current_graph_task_id")
    return task_id


def call_after_backward(callback: Callable[[], None]) -> None:
    """Call it at the end of this thread's backward pass; its errors are raised by `backward()`."""
    _get(torch.autograd.Variable, "torch.autograd.Variable._execution_engine").queue_callback(callback)


def sparse_values(tensor: Tensor) -> Tensor:
    """The values of a sparse tensor that need not be coalesced, sharing its memory."""
    values: Tensor = _get(tensor, "Tensor._values")()
    return values


def buffers_of(module: nn.Module) -> dict[str, Tensor | None]:
    """The module's own buffers, including None; writing to the dict changes the module."""
    buffers: dict[str, Tensor | None] = _get(module, "Module._buffers")
    return buffers


def has_scaled(scaler: GradScaler) -> bool:
    """Whether the scaler has scaled a loss; before that it has no scale."""
    return _get(scaler, "GradScaler._scale") is not None


def module_inside(model: Any) -> Any:
    """The module inside `torch.compile(module)`, which shares its parameters and hooks; else the model itself."""
    while type(model).__module__ == "torch._dynamo.eval_frame" and isinstance(model, nn.Module):
        model = _get(model, "OptimizedModule._orig_mod")
    return model


def communication_hooks(model: DistributedDataParallel) -> list[tuple[Callable[..., Any], Any]]:
    """The hooks that DDP remembers, each with its state; a copied model has them, and its reducer does not."""
    hooks: list[tuple[Callable[..., Any], Any]] = _get(model, "DistributedDataParallel._comm_hooks")
    return hooks


def parameters_of(model: DistributedDataParallel) -> list[nn.Parameter]:
    """The parameters that DDP does not ignore."""
    return list(_get(model, "DistributedDataParallel._module_parameters"))


def count_reduced_parameters(model: DistributedDataParallel) -> int:
    """The number of parameters in DDP's buckets: those that required gradients when the model was wrapped."""
    return int(_get(model, "DistributedDataParallel._get_ddp_logging_data")()["num_parameter_tensors"])


def awaits_first_static_step(model: DistributedDataParallel) -> bool:
    """Whether the next step is the first one with `static_graph`: its buckets come after backward."""
    api = "DistributedDataParallel._static_graph_delay_allreduce_enqueued"
    return bool(model.static_graph) and not _get(model, api)


def reducer_of(model: DistributedDataParallel) -> Any:
    """DDP's reducer: another object for a copied model."""
    return _get(model, "DistributedDataParallel.reducer")


def used_map_of(model: DistributedDataParallel) -> Callable[[], Tensor]:
    """A function that returns, after a backward pass, one number per parameter: whether this rank used it."""
    used_map: Callable[[], Tensor] = _get(reducer_of(model), "Reducer._get_local_used_map")
    return used_map


def parameters_by_bucket(model: DistributedDataParallel) -> list[list[Tensor]]:
    """The parameters of each of DDP's buckets, in the order of the buckets; these are rebuilt after the first step."""
    buckets = _get(reducer_of(model), "Reducer._get_zeros_like_grad_buckets")()
    return [list(bucket.parameters()) for bucket in buckets]


def count_buckets(model: DistributedDataParallel) -> int:
    """The number of DDP's buckets, which are rebuilt after the first step."""
    return len(parameters_by_bucket(model))


def steps_in_backward(parameter: nn.Parameter) -> bool:
    """Whether an optimizer steps inside backward (_apply_optimizer_in_backward)."""
    return hasattr(parameter, "_in_backward_optimizers")


def default_store(c10d: ModuleType) -> Any:
    """The key-value store of the default process group; the caller passes the module, since core must not import it."""
    return _get(c10d, "distributed_c10d._get_default_store")()


def dispatch_mode(utils: Any = torch.utils) -> type[Any]:
    """The base class of contexts that intercept every operation of torch."""
    mode: type[Any] = _get(utils, "torch.utils._python_dispatch").TorchDispatchMode
    return mode
