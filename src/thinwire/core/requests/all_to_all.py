"""AllToAll: every rank has a payload for each other rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..tensors import Payload
from .base import (
    Gathered,
    Label,
    Request,
    World,
    all_expected,
    all_labels,
    any_raised,
    cut_all,
    flag_payload,
    join,
    type_names,
    types_of,
)


@dataclass(frozen=True, eq=False)
class AllToAll(Request):
    """payloads[r] goes to rank r; answered with what all ranks sent to this one (`Gathered`). All of one form.

    expects: as in AllGather.
    """

    payloads: tuple[Payload, ...]
    labels: tuple[Label, ...] = ()
    step: int = 0
    expects: int = 0

    flag_order = 1

    def describe_form(self) -> str:
        return f"AllToAll of ({type_names(types_of(self.payloads[0]))})"

    def payload_to(self, rank: int) -> Payload:
        return self.payloads[rank]

    def wire_bytes(self, world: World, sizes: Sequence[int] | None = None) -> tuple[int, int]:
        outgoing = [payload.nbytes for payload in self.payloads]
        sizes = outgoing if sizes is None else sizes
        return sum(outgoing) - outgoing[world.rank], sum(sizes) - sizes[world.rank]

    def frames(self, requests: Sequence[AllToAll], world: World) -> tuple[list[Payload], list[Payload]]:
        others = [rank for rank in range(world.size) if rank != world.rank]
        return [self.payloads[rank] for rank in others], [requests[rank].payloads[world.rank] for rank in others]

    def merge_key(self) -> tuple[str, ...]:
        return ("AllToAll",)

    def merge(self, group: Sequence[AllToAll]) -> AllToAll:
        payloads = tuple(map(join, zip(*[request.payloads for request in group], strict=True)))
        return replace(self, payloads=payloads, labels=all_labels(group), expects=all_expected(group))

    def split(self, group: Sequence[AllToAll], answer: Gathered) -> list[Gathered]:
        return cut_all(answer, [len(request.payloads[0].parts) for request in group])

    def make_flag(self, flag: bool, group: Sequence[Request]) -> AllToAll:
        payload, label = flag_payload(flag)
        return AllToAll((payload,) * len(self.payloads), (label,) * (len(self.payloads) - 1))

    def read_flag(self, answer: Gathered, flag: bool) -> tuple[bool, frozenset[int]]:
        return any_raised(answer), frozenset()

    def answer_alone(self) -> Gathered:
        return Gathered(self.payloads)

    def answer_alike(self, size: int) -> Gathered:
        return Gathered([self.payloads[0]] * size)

    def answer_all(self, requests: Sequence[AllToAll]) -> list[Gathered]:
        boxes = [request.payloads for request in requests]
        return [Gathered(Payload(box[rank].parts) for box in boxes) for rank in range(len(requests))]
