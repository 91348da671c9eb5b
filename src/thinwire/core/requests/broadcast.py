"""Broadcast: every rank receives root's payload, along a binomial tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..payloads import Payload, join
from .base import Label, Request, World, all_labels, sum_expected_bytes, type_names, types_of


@dataclass(frozen=True, eq=False)
class Broadcast(Request):
    """Answered with root's payload.

    Args:
        payload: on root, what is sent; on other ranks any payload with as many parts of the same types.
        root: the sending rank.
        expected_bytes: as in AllGather; needed where the payload here is much shorter than root's.
    """

    payload: Payload
    root: int = 0
    labels: tuple[Label, ...] = ()
    step: int = 0
    expected_bytes: int = 0

    def describe_form(self) -> str:
        return f"Broadcast from {self.root} of ({type_names(types_of(self.payload))})"

    def contributes(self, world: World) -> bool:
        return self.root == world.rank

    def payload_to(self, rank: int) -> Payload:
        return self.payload

    def wire_bytes(self, world: World, sizes: Sequence[int] | None = None) -> tuple[int, int]:
        num_bytes = self.payload.num_bytes if sizes is None else sizes[self.root]
        children = tree_children(world.rank, world.size, self.root)
        return len(children) * num_bytes, 0 if world.rank == self.root else num_bytes

    def frames(self, requests: Sequence[Broadcast], world: World) -> tuple[list[Payload], list[Payload]]:
        payload = requests[self.root].payload
        children = tree_children(world.rank, world.size, self.root)
        return [payload] * len(children), [] if world.rank == self.root else [payload]

    def merge_key(self) -> tuple[str, ...]:
        return ("Broadcast", str(self.root))

    def merge(self, batch: Sequence[Broadcast]) -> Broadcast:
        payload = join([request.payload for request in batch])
        return replace(self, payload=payload, labels=all_labels(batch), expected_bytes=sum_expected_bytes(batch))

    def split(self, batch: Sequence[Broadcast], answer: Payload) -> list[Payload]:
        return answer.cut([request.payload.num_parts for request in batch])

    def answer_alone(self) -> Payload:
        return self.payload

    def answer_if_identical(self, size: int) -> Payload:
        return self.payload

    def answer_all(self, requests: Sequence[Broadcast]) -> list[Payload]:
        return [requests[self.root].payload.unlabeled()] * len(requests)


def tree_children(rank: int, size: int, root: int) -> list[int]:
    """The ranks to which a rank forwards a broadcast, in a binomial tree."""
    position = (rank - root) % size
    spans = (1 << i for i in range(size.bit_length()))
    return [(position + span + root) % size for span in spans if span > position and position + span < size]
