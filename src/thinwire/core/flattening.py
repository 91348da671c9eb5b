"""Flattening: layers that are exchanged as one vector, and the buffer that holds them until all are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from .capabilities import Capability, has
from .composition import parts_of
from .context import Context
from .errors import IncompatibleParts
from .parts import Aggregator, Reduced
from .programs import fuse, loopback
from .requests import Label, Program, Request
from .tensors import TensorSpec

FLATTENED = "whole"  # the vector's layer name; frozen: makes the random bits


@dataclass(frozen=True, eq=False)
class FlattenLayers(Request):
    """A request of one layer to `fuse`: reduce it by `part` in one vector with all layers that ask for the same part.

    Answered with the layer's slice of the result. No driver sees it. The part has no state.
    """

    part: Aggregator[tuple[()]]
    tensor: Tensor
    spec: TensorSpec
    ctx: Context
    labels: tuple[Label, ...] = ()
    step: int = 0

    expands = True

    def describe_form(self) -> str:
        return "FlattenLayers"

    def merge_key(self) -> tuple[str, ...]:
        return ("FlattenLayers",)

    def expand(self, batch: Sequence[FlattenLayers]) -> Program[list[Any]]:
        groups = _group_by_part(batch)
        outs = yield from fuse([reduce_flattened([batch[i] for i in group]) for group in groups])
        results = {i: out for group, each in zip(groups, outs, strict=True) for i, out in zip(group, each, strict=True)}
        return [results[i] for i in range(len(batch))]

    def answer_alone(self) -> Any:
        """Without `fuse`, the layer alone is the vector."""
        return loopback(reduce_flattened([self]))[0]


def _group_by_part(requests: Sequence[FlattenLayers]) -> list[list[int]]:
    """Indices of the requests with equal parts."""
    groups: list[list[int]] = []
    for i, request in enumerate(requests):
        group = next((group for group in groups if requests[group[0]].part == request.part), None)
        if group is None:
            groups.append(group := [])
        group.append(i)
    return groups


def reduce_flattened(requests: Sequence[FlattenLayers]) -> Program[list[Reduced[tuple[()]]]]:
    """Reduce all tensors as one vector, in the widest of their types; returns each layer's slice of the result."""
    dtype = reduce(torch.promote_types, [request.spec.dtype for request in requests])
    flat = torch.cat([request.tensor.to(dtype).flatten() for request in requests])
    spec = TensorSpec(FLATTENED, tuple(flat.shape), dtype, flat.device)
    out = yield from requests[0].part.reduce(flat, spec, (), requests[0].ctx)
    ends = torch.tensor([request.spec.numel for request in requests]).cumsum(0).tolist()
    return [_slice_of(out, request.spec, end) for request, end in zip(requests, ends, strict=True)]


def _slice_of(out: Reduced[tuple[()]], spec: TensorSpec, end: int) -> Reduced[tuple[()]]:
    def cut(flat: Tensor) -> Tensor:
        return flat.flatten()[end - spec.numel : end].view(spec.shape)

    return Reduced(lambda _: cut(out.value), lambda: cut(out.sent), ())


class FlattenBuffer:
    """Holds the flattened layers of a step that arrive in several exchanges until the last one is there.

    names: the layers that are flattened. held: those that have arrived.
    """

    def __init__(self, aggregators: Mapping[str, Aggregator[Any]], layers: Sequence[TensorSpec]) -> None:
        parts = {spec.name: _flattening_part(aggregators[spec.name]) for spec in layers}
        self.names = [name for name, part in parts.items() if part is not None]
        _check_devices([spec for spec in layers if spec.name in self.names], parts)
        self.held: dict[str, Tensor] = {}
        self._into: dict[str, Tensor] = {}

    def disable(self) -> None:
        """From now on each exchange flattens the layers that it is given and waits for no others."""
        self.names = []

    def complete(
        self, tensors: Mapping[str, Tensor], into: Mapping[str, Tensor] | None
    ) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor] | None]:
        """The tensors and outputs that can be exchanged now: other layers, and all held ones with the last of them."""
        mine = [name for name in self.names if name in tensors]
        if not mine:
            return tensors, into
        self.held |= {name: tensors[name] for name in mine}
        self._into |= {name: into[name] for name in mine} if into is not None else {}
        ready = {name: tensor for name, tensor in tensors.items() if name not in self.held}
        outputs = None if into is None else {name: into[name] for name in ready}
        if len(self.held) == len(self.names):
            ready |= {name: self.held[name] for name in self.names}  # in a fixed order, however they arrived
            outputs = None if outputs is None else outputs | self._into
            self.clear()
        return ready, outputs

    def clear(self) -> list[str]:
        """Drop what is held; returns the layers that had not arrived."""
        missing = [name for name in self.names if name not in self.held] if self.held else []
        self.held, self._into = {}, {}
        return missing


def _check_devices(specs: Sequence[TensorSpec], parts: Mapping[str, Any]) -> None:
    firsts: list[TensorSpec] = []  # the first layer of each part
    for spec in specs:
        other = next((first for first in firsts if parts[first.name] == parts[spec.name]), None)
        if other is None:
            firsts.append(spec)
        elif other.device != spec.device:
            raise IncompatibleParts(
                f"layers that are flattened must be on one device, got {other.name} on {other.device} and {spec.name} "
                f"on {spec.device}; give the layers of each device a pattern of their own, with different settings"
            )


def _flattening_part(aggregator: Aggregator[Any]) -> Any:
    return next((part for part in parts_of(aggregator) if has(part, Capability.FLATTENS_LAYERS)), None)
