"""AllToAll: every rank sends a payload of its own to each other rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..payloads import Payload, join
from .base import (
    GatheredPayloads,
    Label,
    Request,
    World,
    all_labels,
    any_raised,
    cut_all,
    flag_payload,
    sum_expected_bytes,
    type_names,
    types_of,
)


@dataclass(frozen=True, eq=False)
class AllToAll(Request):
    """Answered with what all ranks sent to this one (`GatheredPayloads`).

    Args:
        payloads: payloads[r] goes to rank r; all have the same number and types of parts.
        expected_bytes: as in AllGather.
    """

    payloads: tuple[Payload, ...]
    labels: tuple[Label, ...] = ()
    step: int = 0
    expected_bytes: int = 0

    flag_order = 1

    def describe_form(self) -> str:
        return f"AllToAll of ({type_names(types_of(self.payloads[0]))})"

    def payload_to(self, rank: int) -> Payload:
        return self.payloads[rank]

    def wire_bytes(self, world: World, sizes: Sequence[int] | None = None) -> tuple[int, int]:
        outgoing = [payload.num_bytes for payload in self.payloads]
        sizes = outgoing if sizes is None else sizes
        return sum(outgoing) - outgoing[world.rank], sum(sizes) - sizes[world.rank]

    def frames(self, requests: Sequence[AllToAll], world: World) -> tuple[list[Payload], list[Payload]]:
        others = [rank for rank in range(world.size) if rank != world.rank]
        return [self.payloads[rank] for rank in others], [requests[rank].payloads[world.rank] for rank in others]

    def merge_key(self) -> tuple[str, ...]:
        return ("AllToAll",)

    def merge(self, batch: Sequence[AllToAll]) -> AllToAll:
        payloads = tuple(map(join, zip(*[request.payloads for request in batch], strict=True)))
        return replace(self, payloads=payloads, labels=all_labels(batch), expected_bytes=sum_expected_bytes(batch))

    def split(self, batch: Sequence[AllToAll], answer: GatheredPayloads) -> list[GatheredPayloads]:
        return cut_all(answer, [request.payloads[0].num_parts for request in batch])

    def make_flag(self, flag: bool, batch: Sequence[Request]) -> AllToAll:
        payload, label = flag_payload(flag)
        return AllToAll((payload,) * len(self.payloads), (label,) * (len(self.payloads) - 1))

    def read_flag(self, answer: GatheredPayloads, flag: bool) -> tuple[bool, frozenset[int]]:
        return any_raised(answer), frozenset()

    def answer_alone(self) -> GatheredPayloads:
        return GatheredPayloads(self.payloads)

    def answer_if_identical(self, size: int) -> GatheredPayloads:
        return GatheredPayloads([self.payloads[0]] * size)

    def answer_all(self, requests: Sequence[AllToAll]) -> list[GatheredPayloads]:
        boxes = [request.payloads for request in requests]
        return [GatheredPayloads(box[rank].unlabeled() for box in boxes) for rank in range(len(requests))]
