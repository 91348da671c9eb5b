"""Error and size of each option: what it would lose of a tensor, and how many bytes it would send."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
    SameObject,
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


def _key(spec: TensorSpec, ctx: Context) -> Key:
    return derive_key(ctx.seed, KEY_WORD, ctx.step, spec.name)


def compute_errors(
    options: Sequence[Aggregator[Any]], tensor: Tensor, spec: TensorSpec, key: Key, exact: bool = False, step: int = 0
) -> Tensor:
    """Return the L2 norm (float64) of what each option loses of the tensor, without any memory.

    One computation gives the errors of several options where it can (one sort for all densities, one factorization for
    all ranks); with `exact` only if it gives no mere estimates. All other options are run.
    """
    options = tuple(options)
    errors: list[float | None] = [None] * len(options)
    left = list(range(len(options)))
    while left:
        first = left[0]
        if estimates_errors(option := options[first]):
            known = option.estimate_errors(tensor, spec, _pick(options, left), key, exact)
            if isinstance(known, Tensor):
                if len(left) == len(options):
                    return known.to("cpu", torch.float64)
                known = known.tolist()
            for at, error in zip(left, known, strict=True):
                errors[at] = error
        if errors[first] is None:
            errors[first] = measure_error(option, tensor, spec, key, step)
        left = [at for at in left if errors[at] is None]
    return torch.tensor(errors, dtype=torch.float64)


def _pick(options: tuple[Aggregator[Any], ...], indices: Sequence[int]) -> tuple[Aggregator[Any], ...]:
    """Some of the options in order, as the same tuple at every decision: parts cache what depends on it alone."""
    return options if len(indices) == len(options) else _pick_cached(SameObject(options), tuple(indices))


@lru_cache(maxsize=256)
def _pick_cached(options: SameObject[tuple[Aggregator[Any], ...]], indices: tuple[int, ...]) -> tuple[Any, ...]:
    return tuple(options.value[at] for at in indices)


def measure_error(option: Aggregator[Any], tensor: Tensor, spec: TensorSpec, key: Key, step: int = 0) -> float:
    """Run an option in a world of one rank and return the L2 norm of what is lost."""
    sent = cast_saturating(tensor, spec.dtype)
    out = loopback(option.reduce(sent, spec, option.init(spec, key), Context(step, World(0, 1), key)))
    return float(torch.linalg.vector_norm(tensor - out.value.view(tensor.shape), dtype=torch.float64))


class KnownBytes(NamedTuple):
    """Bytes of a layer's options that are the same for every tensor of its form."""

    row: Tensor  # float64; NaN where they depend on the tensor
    varying: tuple[int, ...]  # options for which they do


class CostTable:
    """Bytes of all options of some menus. What does not depend on a tensor is computed once for each world size."""

    def __init__(self, menus: LayerMenus) -> None:
        self._menus = menus
        self._known: dict[int, list[KnownBytes]] = {}  # by world size; one for each layer

    def compute(self, tensor_of: Callable[[int], Tensor], ctx: Context) -> list[Tensor]:
        """Return the bytes that a rank would send with each option, a row for each layer.

        Args:
            tensor_of: returns the tensor of the layer with this index; called only where bytes depend on it.
            ctx: of this step.
        """
        known = self._known.get(size := ctx.world.size)
        if known is None:
            known = self._known[size] = [known_bytes(menu.options, spec, size) for spec, menu in self._menus]
        rows = [one.row for one in known]
        for at, one in enumerate(known):
            if one.varying:
                spec, menu = self._menus[at]
                rows[at] = compute_bytes(menu.options, tensor_of(at), spec, size, _key(spec, ctx), ctx.step, one)
        return rows


def compute_bytes(
    options: Sequence[Aggregator[Any]],
    tensor: Tensor,
    spec: TensorSpec,
    size: int,
    key: Key,
    step: int = 0,
    known: KnownBytes | None = None,
) -> Tensor:
    """Return the bytes (float64) that one of `size` ranks would send; a world of one counts as a world of two."""
    known = known_bytes(options, spec, size) if known is None else known
    row = known.row.clone()
    for at in known.varying:
        row[at] = measure_bytes(options[at], tensor, spec, max(2, size), key, step)
    return row


def known_bytes(options: Sequence[Aggregator[Any]], spec: TensorSpec, size: int) -> KnownBytes:
    """Return what options tell of their bytes without a tensor; a world of one counts as a world of two."""
    row = [option.expected_bytes(spec, max(2, size)) if expects_bytes(option) else math.nan for option in options]
    varying = tuple(at for at, option in enumerate(options) if not expects_bytes(option))
    return KnownBytes(torch.tensor(row, dtype=torch.float64), varying)


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
