"""Error and size of each option: what it would lose of a tensor, and how many bytes it would send."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import (
    Aggregator,
    AllReduce,
    Capability,
    Context,
    Key,
    LayerMenus,
    Program,
    Request,
    TensorSpec,
    World,
    capabilities_of,
    cast_saturating,
    derive_key,
    drive,
    estimates_errors,
    expects_bytes,
    loopback,
    parts_of,
    reduce_labels,
)

ERRORS_FROM = ("all", "rank0")
KEY_WORD = "prices"  # frozen: makes the random bits


def compute_error_table(
    menus: LayerMenus, tensors: Sequence[Tensor], ctx: Context, errors_from: str, exact: bool
) -> Program[list[Tensor]]:
    """Return each option's error, a row for each layer.

    Args:
        menus: the layers and their options.
        tensors: one for each layer.
        ctx: of this step.
        errors_from: "all" averages over all ranks; "rank0" takes rank 0's, and all other ranks get zeros.
        exact: whether options are run where only an estimate is known otherwise.
    """
    is_local = errors_from == "rank0"
    widths = [len(menu.options) for _, menu in menus]
    if is_local and ctx.world.rank != 0:
        return [torch.zeros(width, dtype=torch.float64) for width in widths]
    rows = [
        compute_errors(menu.options, tensor, spec, _key(spec, ctx), exact, ctx.step)
        for (spec, menu), tensor in zip(menus, tensors, strict=True)
    ]
    if is_local or ctx.world.size == 1:
        return rows
    table = torch.cat(rows) / ctx.world.size
    table = yield AllReduce(table, labels=reduce_labels("", table, "plan"))
    return list(table.split(widths))


def compute_cost_table(menus: LayerMenus, tensors: Sequence[Tensor], ctx: Context) -> list[Tensor]:
    """Return the bytes that a rank would send with each option, a row for each layer."""
    return [
        compute_bytes(menu.options, tensor, spec, ctx.world.size, _key(spec, ctx), ctx.step)
        for (spec, menu), tensor in zip(menus, tensors, strict=True)
    ]


def _key(spec: TensorSpec, ctx: Context) -> Key:
    return derive_key(ctx.seed, KEY_WORD, ctx.step, spec.name)


def compute_errors(
    options: Sequence[Aggregator[Any]], tensor: Tensor, spec: TensorSpec, key: Key, exact: bool = False, step: int = 0
) -> Tensor:
    """Return the L2 norm (float64) of what each option loses of the tensor, without any memory.

    One computation gives the errors of several options where it can (one sort for all densities, one factorization for
    all ranks); with `exact` only if it gives no mere estimates. All other options are run.
    """
    errors: dict[int, float] = {}
    for at, option in enumerate(options):
        if at in errors:
            continue
        left = [i for i in range(at, len(options)) if i not in errors]
        if estimates_errors(option):
            known = option.estimate_errors(tensor, spec, [options[i] for i in left], key, exact)
            errors |= {i: error for i, error in zip(left, known, strict=True) if error is not None}
        if at not in errors:
            errors[at] = measure_error(option, tensor, spec, key, step)
    return torch.tensor([errors[at] for at in range(len(options))], dtype=torch.float64)


def measure_error(option: Aggregator[Any], tensor: Tensor, spec: TensorSpec, key: Key, step: int = 0) -> float:
    """Run an option in a world of one rank and return the L2 norm of what is lost."""
    sent = cast_saturating(tensor, spec.dtype)
    out = loopback(option.reduce(sent, spec, option.init(spec, key), Context(step, World(0, 1), key)))
    return float(torch.linalg.vector_norm(tensor - out.value.view(tensor.shape), dtype=torch.float64))


def compute_bytes(
    options: Sequence[Aggregator[Any]], tensor: Tensor, spec: TensorSpec, size: int, key: Key, step: int = 0
) -> Tensor:
    """Return the bytes (float64) that one of `size` ranks would send; a world of one counts as a world of two."""
    size = max(2, size)
    costs = [
        measure_bytes(option, tensor, spec, size, key, step) if fixed is None else fixed
        for option, fixed in zip(options, _fixed_bytes(_SameObject(options), spec, size), strict=True)
    ]
    return torch.tensor(costs, dtype=torch.float64)


class _SameObject(NamedTuple):
    """Options as a key of a cache, compared by identity: comparing a hundred compositions would cost more."""

    options: Sequence[Aggregator[Any]]

    def __hash__(self) -> int:
        return id(self.options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SameObject) and self.options is other.options


@lru_cache(maxsize=4096)
def _fixed_bytes(menu: _SameObject, spec: TensorSpec, size: int) -> list[float | None]:
    """Bytes of options that send the same for every tensor of this form; None where they depend on the tensor."""
    return [option.expected_bytes(spec, size) if expects_bytes(option) else None for option in menu.options]


def size_varies(option: Any) -> bool:
    """Whether the bytes depend on the tensor, and no part of the option knows an expected number."""
    inside = map(capabilities_of, parts_of(option))
    return any(Capability.VARIABLE_SIZE in can and Capability.EXPECTS_BYTES not in can for can in inside)


def measure_bytes(
    option: Aggregator[Any], tensor: Tensor, spec: TensorSpec, size: int, key: Key, step: int = 0
) -> float:
    """Run an option as rank 0 of a world in which all ranks have this tensor, and count the bytes it sends."""
    ctx, sent = Context(step, World(0, size), key), 0.0

    def answer(request: Request) -> Any:
        nonlocal sent
        sent += request.wire_bytes(ctx.world)[0]
        return request.answer_if_identical(size)

    drive(option.reduce(cast_saturating(tensor, spec.dtype), spec, option.init(spec, key), ctx), answer)
    return sent
