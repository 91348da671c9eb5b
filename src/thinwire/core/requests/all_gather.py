"""AllGather: every rank gets all ranks' payloads."""

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
class AllGather(Request):
    """Answered with the payloads of all ranks (`Gathered`). Their lengths may differ, their form may not.

    expects: about how many bytes may come from one rank, where its own payload may be much shorter; with it, a driver
    tells a long message from a header that is wrong. It is not sent.
    """

    payload: Payload
    labels: tuple[Label, ...] = ()
    step: int = 0
    expects: int = 0

    flag_order = 0

    def describe_form(self) -> str:
        return f"AllGather of ({type_names(types_of(self.payload))})"

    def payload_to(self, rank: int) -> Payload:
        return self.payload

    def wire_bytes(self, world: World, sizes: Sequence[int] | None = None) -> tuple[int, int]:
        own, others = self.payload.nbytes, world.size - 1
        return others * own, others * own if sizes is None else sum(sizes) - sizes[world.rank]

    def frames(self, requests: Sequence[AllGather], world: World) -> tuple[list[Payload], list[Payload]]:
        received = [request.payload for rank, request in enumerate(requests) if rank != world.rank]
        return [self.payload] * (world.size - 1), received

    def merge_key(self) -> tuple[str, ...]:
        return ("AllGather",)

    def merge(self, group: Sequence[AllGather]) -> AllGather:
        payload = join([request.payload for request in group])
        return replace(self, payload=payload, labels=all_labels(group), expects=all_expected(group))

    def split(self, group: Sequence[AllGather], answer: Gathered) -> list[Gathered]:
        counts = [len(request.payload.parts) for request in group]
        return answer.once(("cut", *counts), lambda: cut_all(answer, counts))

    def make_flag(self, flag: bool, group: Sequence[Request]) -> AllGather:
        payload, label = flag_payload(flag)
        return AllGather(payload, (label,))

    def read_flag(self, answer: Gathered, flag: bool) -> tuple[bool, frozenset[int]]:
        return any_raised(answer), frozenset()

    def answer_alone(self) -> Gathered:
        return Gathered([self.payload])

    def answer_alike(self, size: int) -> Gathered:
        return Gathered([self.payload] * size)

    def answer_all(self, requests: Sequence[AllGather]) -> list[Gathered]:
        answer = Gathered(Payload(request.payload.parts) for request in requests).also(shared=True)
        return [answer] * len(requests)
