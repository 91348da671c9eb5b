"""Layers that are exchanged as one: how they meet in `fuse`, and who waits for whom before that."""

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

WHOLE = "whole"  # what the meter calls them


@dataclass(frozen=True, eq=False)
class Together(Request):
    """What a layer asks of `fuse`, never of a driver: that `part` takes it and all that ask for the same as one.

    Answered with what it gave back for this layer. The part has no memory.
    """

    part: Aggregator[tuple[()]]
    tensor: Tensor
    spec: TensorSpec
    ctx: Context
    labels: tuple[Label, ...] = ()
    step: int = 0

    expands = True

    def describe_form(self) -> str:
        return "Together"

    def merge_key(self) -> tuple[str, ...]:
        return ("Together",)

    def expand(self, group: Sequence[Together]) -> Program[list[Any]]:
        places = _groups_of(group)
        outs = yield from fuse([joined([group[i] for i in same]) for same in places])
        found = {i: out for same, each in zip(places, outs, strict=True) for i, out in zip(same, each, strict=True)}
        return [found[i] for i in range(len(group))]

    def answer_alone(self) -> Any:
        """A layer that no `fuse` sees is the whole."""
        return loopback(joined([self]))[0]


def _groups_of(asks: Sequence[Together]) -> list[list[int]]:
    """Places of those that ask for the same."""
    found: list[list[int]] = []
    for i, ask in enumerate(asks):
        group = next((group for group in found if asks[group[0]].part == ask.part), None)
        if group is None:
            found.append(group := [])
        group.append(i)
    return found


def joined(asks: Sequence[Together]) -> Program[list[Reduced[tuple[()]]]]:
    """One exchange of all tensors, end to end; what each layer has of it. The widest of their types serves all."""
    dtype = reduce(torch.promote_types, [ask.spec.dtype for ask in asks])
    flat = torch.cat([ask.tensor.to(dtype).flatten() for ask in asks])
    spec = TensorSpec(WHOLE, tuple(flat.shape), dtype, flat.device)
    out = yield from asks[0].part.reduce(flat, spec, (), asks[0].ctx)
    ends = torch.tensor([ask.spec.numel for ask in asks]).cumsum(0).tolist()
    return [_piece(out, ask.spec, end) for ask, end in zip(asks, ends, strict=True)]


def _piece(out: Reduced[tuple[()]], spec: TensorSpec, end: int) -> Reduced[tuple[()]]:
    def cut(flat: Tensor) -> Tensor:
        return flat.flatten()[end - spec.numel : end].view(spec.shape)

    return Reduced(lambda _: cut(out.value), lambda: cut(out.sent), ())


class Waiting:
    """Layers of one step that come in several exchanges and are held until the last of them has come."""

    def __init__(self, rules: Mapping[str, Aggregator[Any]], layers: Sequence[TensorSpec]) -> None:
        found = {spec.name: _part_for_all(rules[spec.name]) for spec in layers}
        self.names = [name for name, part in found.items() if part is not None]
        _check_devices([spec for spec in layers if spec.name in self.names], found)
        self.held: dict[str, Tensor] = {}
        self._into: dict[str, Tensor] = {}

    def no_more(self) -> None:
        """Every exchange from now on is given all at once: what is in it is the whole."""
        self.names = []

    def complete(
        self, tensors: Mapping[str, Tensor], into: Mapping[str, Tensor] | None
    ) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor] | None]:
        """What can be exchanged now: those that wait for nobody and, with the last of the others, all of these."""
        mine = [name for name in self.names if name in tensors]
        if not mine:
            return tensors, into
        self.held |= {name: tensors[name] for name in mine}
        self._into |= {name: into[name] for name in mine} if into is not None else {}
        ready = {name: tensor for name, tensor in tensors.items() if name not in self.held}
        places = None if into is None else {name: into[name] for name in ready}
        if len(self.held) == len(self.names):
            ready |= {name: self.held[name] for name in self.names}  # in one order, however they came
            places = None if places is None else places | self._into
            self.drop()
        return ready, places

    def drop(self) -> list[str]:
        """Wait no longer; who was still waited for, if anybody."""
        missing = [name for name in self.names if name not in self.held] if self.held else []
        self.held, self._into = {}, {}
        return missing


def _check_devices(specs: Sequence[TensorSpec], parts: Mapping[str, Any]) -> None:
    firsts: list[TensorSpec] = []  # of each part
    for spec in specs:
        other = next((first for first in firsts if parts[first.name] == parts[spec.name]), None)
        if other is None:
            firsts.append(spec)
        elif other.device != spec.device:
            raise IncompatibleParts(
                f"{other.name} is on {other.device}, {spec.name} on {spec.device}, and what is exchanged as one must "
                "be in one place; give the layers of each device a pattern of their own, with another density"
            )


def _part_for_all(rule: Aggregator[Any]) -> Any:
    return next((part for part in parts_of(rule) if has(part, Capability.FLATTENS_LAYERS)), None)
