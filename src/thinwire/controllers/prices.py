"""What each entry of a menu would lose of a tensor, and what it would send."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..core import (
    Aggregator,
    Context,
    ExpectsBytes,
    Key,
    PricedAlong,
    Request,
    TensorSpec,
    World,
    answer_alike,
    drive,
    loopback,
    narrow,
    wire_bytes,
)


def errors_of(
    entries: Sequence[Aggregator[Any]], tensor: Tensor, spec: TensorSpec, key: Key, exact: bool = False
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
        if isinstance(entry, PricedAlong):
            known = entry.errors_along(tensor, spec, [entries[i] for i in left], key, exact)
            found |= {i: error for i, error in zip(left, known, strict=True) if error is not None}
        if at not in found:
            found[at] = tried_error(entry, tensor, spec, key)
    return torch.tensor([found[at] for at in range(len(entries))], dtype=torch.float64)


def tried_error(entry: Aggregator[Any], tensor: Tensor, spec: TensorSpec, key: Key) -> float:
    given = narrow(tensor, spec.dtype)
    out = loopback(entry.reduce(given, spec, entry.init(spec, key), Context(0, World(0, 1), key)))
    return math.sqrt(float((tensor.double() - out.value.double().view(tensor.shape)).square().sum()))


def bytes_of(entries: Sequence[Aggregator[Any]], tensor: Tensor, spec: TensorSpec, size: int, key: Key) -> Tensor:
    """What one rank of so many would send for the tensor (float64); a world of one is priced as if there were two."""
    size = max(2, size)
    costs = [
        entry.expected_bytes(spec, size)
        if isinstance(entry, ExpectsBytes)
        else tried_bytes(entry, tensor, spec, size, key)
        for entry in entries
    ]
    return torch.tensor(costs, dtype=torch.float64)


def tried_bytes(entry: Aggregator[Any], tensor: Tensor, spec: TensorSpec, size: int, key: Key) -> float:
    """By what the first rank asks for where all ranks have this tensor."""
    ctx, sent = Context(0, World(0, size), key), 0.0

    def answer(request: Request) -> Any:
        nonlocal sent
        sent += wire_bytes(request, ctx.world)[0]
        return answer_alike(request, size)

    drive(entry.reduce(narrow(tensor, spec.dtype), spec, entry.init(spec, key), ctx), answer)
    return sent
