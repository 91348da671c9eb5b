"""What each entry of a menu would lose of a tensor, and what it would send; and both for all layers."""

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
    Choices,
    Context,
    Key,
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

FROM = ("all", "one")


def error_table(
    choices: Choices, tensors: Sequence[Tensor], ctx: Context, statistics: str, exact: bool
) -> Program[list[Tensor]]:
    """What every entry would lose, a row for each layer: of "all" ranks on average, or of "one", the first.

    In the latter case the others get zeros.
    """
    alone = statistics == "one"
    widths = [len(menu.entries) for _, menu in choices]
    if alone and ctx.world.rank != 0:
        return [torch.zeros(width, dtype=torch.float64) for width in widths]
    rows = [
        errors_of(menu.entries, tensor, spec, _key(spec, ctx), exact, ctx.step)
        for (spec, menu), tensor in zip(choices, tensors, strict=True)
    ]
    if alone or ctx.world.size == 1:
        return rows
    table = torch.cat(rows) / ctx.world.size
    table = yield AllReduce(table, labels=reduce_labels("", table, "plan"))
    return list(table.split(widths))


def cost_table(choices: Choices, tensors: Sequence[Tensor], ctx: Context) -> list[Tensor]:
    """What a rank would send with every entry, a row for each layer."""
    return [
        bytes_of(menu.entries, tensor, spec, ctx.world.size, _key(spec, ctx), ctx.step)
        for (spec, menu), tensor in zip(choices, tensors, strict=True)
    ]


def _key(spec: TensorSpec, ctx: Context) -> Key:
    return derive_key(ctx.seed, "prices", ctx.step, spec.name)


def errors_of(
    entries: Sequence[Aggregator[Any]], tensor: Tensor, spec: TensorSpec, key: Key, exact: bool = False, step: int = 0
) -> Tensor:
    """L2 norms (float64) of what is lost of the tensor without any memory.

    Entries that one computation can price together are (one sort for all densities, one factorisation for all ranks);
    with `exact` that must give the very errors. Others are tried out.
    """
    found: dict[int, float] = {}
    for at, entry in enumerate(entries):
        if at in found:
            continue
        left = [i for i in range(at, len(entries)) if i not in found]
        if estimates_errors(entry):
            known = entry.errors_along(tensor, spec, [entries[i] for i in left], key, exact)
            found |= {i: error for i, error in zip(left, known, strict=True) if error is not None}
        if at not in found:
            found[at] = tried_error(entry, tensor, spec, key, step)
    return torch.tensor([found[at] for at in range(len(entries))], dtype=torch.float64)


def tried_error(entry: Aggregator[Any], tensor: Tensor, spec: TensorSpec, key: Key, step: int = 0) -> float:
    given = cast_saturating(tensor, spec.dtype)
    out = loopback(entry.reduce(given, spec, entry.init(spec, key), Context(step, World(0, 1), key)))
    return float(torch.linalg.vector_norm(tensor - out.value.view(tensor.shape), dtype=torch.float64))


def bytes_of(
    entries: Sequence[Aggregator[Any]], tensor: Tensor, spec: TensorSpec, size: int, key: Key, step: int = 0
) -> Tensor:
    """What one rank of so many would send for the tensor (float64); a world of one is priced as if there were two."""
    size = max(2, size)
    costs = [
        tried_bytes(entry, tensor, spec, size, key, step) if fixed is None else fixed
        for entry, fixed in zip(entries, _fixed_bytes(_Identical(entries), spec, size), strict=True)
    ]
    return torch.tensor(costs, dtype=torch.float64)


class _Identical(NamedTuple):
    """A menu's entries as a key: the very same ones, because comparing a hundred compositions would cost more."""

    entries: Sequence[Aggregator[Any]]

    def __hash__(self) -> int:
        return id(self.entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identical) and self.entries is other.entries


@lru_cache(maxsize=4096)
def _fixed_bytes(menu: _Identical, spec: TensorSpec, size: int) -> list[float | None]:
    """Bytes of entries that send the same for every tensor of this form; None where only a tensor can tell."""
    return [entry.expected_bytes(spec, size) if expects_bytes(entry) else None for entry in menu.entries]


def size_varies(entry: Any) -> bool:
    """Whether what it sends depends on the numbers, with no expectation of it: then only a tensor can tell."""
    inside = map(capabilities_of, parts_of(entry))
    return any(Capability.VARIABLE_SIZE in can and Capability.EXPECTS_BYTES not in can for can in inside)


def tried_bytes(entry: Aggregator[Any], tensor: Tensor, spec: TensorSpec, size: int, key: Key, step: int = 0) -> float:
    """By what the first rank asks for where all ranks have this tensor."""
    ctx, sent = Context(step, World(0, size), key), 0.0

    def answer(request: Request) -> Any:
        nonlocal sent
        sent += request.wire_bytes(ctx.world)[0]
        return request.answer_if_identical(size)

    drive(entry.reduce(cast_saturating(tensor, spec.dtype), spec, entry.init(spec, key), ctx), answer)
    return sent
