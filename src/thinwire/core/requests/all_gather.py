"""AllGather: every rank receives the payloads of all ranks."""

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
class AllGather(Request):
    """Answered with the payloads of all ranks (`GatheredPayloads`). Lengths may differ between ranks, types may not.

    Args:
        payload: this rank's.
        expected_bytes: upper estimate of the bytes from one rank, where this rank's payload may be much shorter. A
            driver uses it to tell a long message from a damaged header; it is not sent.
    """

    payload: Payload
    labels: tuple[Label, ...] = ()
    step: int = 0
    expected_bytes: int = 0

    flag_order = 0

    def describe_form(self) -> str:
        return f"AllGather of ({type_names(types_of(self.payload))})"

    def payload_to(self, rank: int) -> Payload:
        return self.payload

    def wire_bytes(self, world: World, sizes: Sequence[int] | None = None) -> tuple[int, int]:
        own, others = self.payload.num_bytes, world.size - 1
        return others * own, others * own if sizes is None else sum(sizes) - sizes[world.rank]

    def frames(self, requests: Sequence[AllGather], world: World) -> tuple[list[Payload], list[Payload]]:
        received = [request.payload for rank, request in enumerate(requests) if rank != world.rank]
        return [self.payload] * (world.size - 1), received

    def merge_key(self) -> tuple[str, ...]:
        return ("AllGather",)

    def merge(self, batch: Sequence[AllGather]) -> AllGather:
        payload = join([request.payload for request in batch])
        return replace(self, payload=payload, labels=all_labels(batch), expected_bytes=sum_expected_bytes(batch))

    def split(self, batch: Sequence[AllGather], answer: GatheredPayloads) -> list[GatheredPayloads]:
        counts = [request.payload.num_parts for request in batch]
        return answer.cached(("cut", *counts), lambda: cut_all(answer, counts))

    def group_payload(self) -> Payload:
        return self.payload

    def answer_group(self, payloads: GatheredPayloads) -> GatheredPayloads:
        return payloads

    def make_flag(self, flag: bool, batch: Sequence[Request]) -> AllGather:
        payload, label = flag_payload(flag)
        return AllGather(payload, (label,))

    def read_flag(self, answer: GatheredPayloads, flag: bool) -> tuple[bool, frozenset[int]]:
        return any_raised(answer), frozenset()

    def answer_alone(self) -> GatheredPayloads:
        return GatheredPayloads([self.payload])

    def answer_if_identical(self, size: int) -> GatheredPayloads:
        return GatheredPayloads([self.payload] * size)

    def answer_all(self, requests: Sequence[AllGather]) -> list[GatheredPayloads]:
        answer = GatheredPayloads(request.payload.unlabeled() for request in requests).mark_shared()
        return [answer] * len(requests)
