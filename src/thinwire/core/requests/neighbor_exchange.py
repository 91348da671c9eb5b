"""NeighborExchange: point-to-point payloads between neighboring ranks; other ranks take no part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ..errors import ProtocolError
from ..payloads import Payload, join
from .base import (
    GatheredPayloads,
    Label,
    Request,
    World,
    all_labels,
    cut_all,
    flag_payload,
    sum_expected_bytes,
    type_names,
    types_of,
)


@dataclass(frozen=True, eq=False)
class NeighborExchange(Request):
    """Send one payload to each receiver; answered with one payload from each of `sources`, in their order.

    All payloads have the same form (number and types of parts). Labels of a rank that sends nothing describe the
    exchange and are not counted.

    Args:
        outgoing: (receiver, payload) pairs.
        sources: ranks that send to this one.
        form: types of the parts; a rank that only receives must give them.
        group: a text, equal on all ranks, that names which ranks exchange with which. Requests of one round with the
            same group must have the same neighbors and are sent as one message.
        tolerate_missing: whether this rank can continue without a source that raised its bad-step flag; such sources
            are in `missing` of the answer. If not, a source's flag makes the step bad for every rank that receives it.
        expected_bytes: upper estimate of the bytes from one source, where this rank sends nothing as long.
    """

    outgoing: tuple[tuple[int, Payload], ...]
    sources: tuple[int, ...]
    form: tuple[torch.dtype, ...] = ()
    group: str = ""
    tolerate_missing: bool = False
    expected_bytes: int = 0
    labels: tuple[Label, ...] = ()
    step: int = 0

    def __post_init__(self) -> None:
        for ranks in (self.receivers, self.sources):
            if len(set(ranks)) < len(ranks):
                raise ValueError(
                    f"NeighborExchange: each neighbor may occur once, got {list(ranks)}; join payloads for one rank"
                )
        if not self.form and self.outgoing:
            object.__setattr__(self, "form", types_of(self.outgoing[0][1]))
        if any(types_of(payload) != self.form for _, payload in self.outgoing):
            forms = sorted({type_names(types_of(payload)) for _, payload in self.outgoing})
            raise TypeError(
                f"NeighborExchange: payloads must have parts ({type_names(self.form)}), got ({'), ('.join(forms)})"
            )

    @property
    def receivers(self) -> tuple[int, ...]:
        return tuple(to for to, _ in self.outgoing)

    def describe_neighbors(self) -> str:
        """Receivers and sources, for an error text."""
        return f"(to {list(self.receivers)}, from {list(self.sources)})"

    def describe_form(self) -> str:
        group = f" in {self.group}" if self.group else ""
        return f"NeighborExchange{group} of ({type_names(self.form)})"

    def check(self, world: World) -> None:
        """Neighbors must be other ranks of this world."""
        ranks = (*self.receivers, *self.sources)
        odd = [rank for rank in ranks if rank == world.rank or not 0 <= rank < world.size]
        if odd:
            raise ProtocolError(
                f"step {self.step}: rank {world.rank} of {world.size} has neighbor {odd[0]} "
                f"{self.describe_neighbors()}; neighbors must be other ranks, 0 to {world.size - 1}"
            )

    def contributes(self, world: World) -> bool:
        return bool(self.outgoing) or world.size == 1

    def payload_to(self, rank: int) -> Payload:
        return dict(self.outgoing).get(rank, Payload(()))

    def wire_bytes(self, world: World, sizes: Sequence[int] | None = None) -> tuple[int, int]:
        sent = [payload.num_bytes for _, payload in self.outgoing]
        return sum(sent), sum(sent[:1]) * len(self.sources) if sizes is None else sum(sizes)

    def headers(self, world: World) -> tuple[int, int]:
        return len(self.outgoing), len(self.sources)

    def frames(self, requests: Sequence[NeighborExchange], world: World) -> tuple[list[Payload], list[Payload]]:
        received = [requests[source].payload_to(world.rank) for source in self.sources]
        return [payload for _, payload in self.outgoing], received

    def sizes_for(self, requests: Sequence[NeighborExchange], rank: int) -> list[int]:
        return [requests[source].payload_to(rank).num_bytes for source in self.sources]

    def merge_key(self) -> tuple[str, ...]:
        return ("NeighborExchange", self.group)  # not by neighbors: these differ between ranks, and so would the order

    def merge(self, batch: Sequence[NeighborExchange]) -> NeighborExchange:
        if odd := [other for other in batch if (other.receivers, other.sources) != (self.receivers, self.sources)]:
            raise ProtocolError(
                f"step {self.step}: two NeighborExchanges in group {self.group!r} have neighbors "
                f"{self.describe_neighbors()} and {odd[0].describe_neighbors()}; give one of them another `group`"
            )
        boxes = zip(*[[payload for _, payload in request.outgoing] for request in batch], strict=True)
        return replace(
            self,
            outgoing=tuple(zip(self.receivers, map(join, boxes), strict=True)),
            form=tuple(dtype for request in batch for dtype in request.form),
            tolerate_missing=all(request.tolerate_missing for request in batch),
            expected_bytes=sum_expected_bytes(batch),
            labels=all_labels(batch),
        )

    def split(self, batch: Sequence[NeighborExchange], answer: GatheredPayloads) -> list[GatheredPayloads]:
        return cut_all(answer, [len(request.form) for request in batch])

    def scope(self) -> str:
        return self.group

    def make_flag(self, flag: bool, batch: Sequence[NeighborExchange]) -> NeighborExchange:
        payload, label = flag_payload(flag)
        return replace(
            self,
            outgoing=tuple((to, payload) for to in self.receivers),
            form=(torch.uint8,),
            tolerate_missing=all(request.tolerate_missing for request in batch),
            expected_bytes=1,
            labels=(label,),
        )

    def read_flag(self, answer: GatheredPayloads, flag: bool) -> tuple[bool, frozenset[int]]:
        pairs = zip(self.sources, answer, strict=True)
        missing = frozenset(source for source, payload in pairs if bool(payload.parts[0].any()))
        return not self.tolerate_missing and (flag or bool(missing)), missing

    def mark_missing(self, answer: GatheredPayloads, missing: frozenset[int]) -> None:
        if self.tolerate_missing:
            answer.missing = missing

    def answer_alone(self) -> GatheredPayloads:
        if self.outgoing or self.sources:
            raise ProtocolError(
                f"step {self.step}: a world of one rank has no neighbors, got {self.describe_neighbors()}"
            )
        return GatheredPayloads()

    def answer_if_identical(self, size: int) -> GatheredPayloads:
        return GatheredPayloads([payload for _, payload in self.outgoing[:1]] * len(self.sources))

    def answer_all(self, requests: Sequence[NeighborExchange]) -> list[GatheredPayloads]:
        check_pairs(requests)
        return [
            GatheredPayloads(requests[source].payload_to(rank).unlabeled() for source in request.sources)
            for rank, request in enumerate(requests)
        ]


def check_pairs(requests: Sequence[NeighborExchange]) -> None:
    """Raise ProtocolError unless every source sends and every receiver expects the message."""
    for rank, request in enumerate(requests):
        request.check(World(rank, len(requests)))
    for rank, request in enumerate(requests):
        for source in request.sources:
            if rank not in requests[source].receivers:
                raise ProtocolError(
                    f"step {request.step}: rank {rank} expects a message of rank {source}, which sends none "
                    f"{requests[source].describe_neighbors()}, in {request.describe()}"
                )
        for to in request.receivers:
            if rank not in requests[to].sources:
                raise ProtocolError(
                    f"step {request.step}: rank {rank} sends to rank {to}, which does not expect it "
                    f"{requests[to].describe_neighbors()}, in {request.describe()}"
                )
