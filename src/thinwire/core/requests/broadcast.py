"""Broadcast: every rank gets root's payload, down a binomial tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..tensors import Payload
from .base import Label, Request, World, all_expected, all_labels, cut, join, type_names, types_of


@dataclass(frozen=True, eq=False)
class Broadcast(Request):
    """Answered with root's payload. On other ranks the payload is a form only: as many parts, of the same types.

    expects: as in AllGather; ranks whose form is much shorter than root's payload say it here.
    """

    payload: Payload
    root: int = 0
    labels: tuple[Label, ...] = ()
    step: int = 0
    expects: int = 0

    def describe_form(self) -> str:
        return f"Broadcast from {self.root} of ({type_names(types_of(self.payload))})"

    def contributes(self, world: World) -> bool:
        return self.root == world.rank

    def payload_to(self, rank: int) -> Payload:
        return self.payload

    def wire_bytes(self, world: World, sizes: Sequence[int] | None = None) -> tuple[int, int]:
        nbytes = self.payload.nbytes if sizes is None else sizes[self.root]
        children = tree_children(world.rank, world.size, self.root)
        return len(children) * nbytes, 0 if world.rank == self.root else nbytes

    def frames(self, requests: Sequence[Broadcast], world: World) -> tuple[list[Payload], list[Payload]]:
        payload = requests[self.root].payload
        children = tree_children(world.rank, world.size, self.root)
        return [payload] * len(children), [] if world.rank == self.root else [payload]

    def merge_key(self) -> tuple[str, ...]:
        return ("Broadcast", str(self.root))

    def merge(self, group: Sequence[Broadcast]) -> Broadcast:
        payload = join([request.payload for request in group])
        return replace(self, payload=payload, labels=all_labels(group), expects=all_expected(group))

    def split(self, group: Sequence[Broadcast], answer: Payload) -> list[Payload]:
        return cut(answer, [len(request.payload.parts) for request in group])

    def answer_alone(self) -> Payload:
        return self.payload

    def answer_alike(self, size: int) -> Payload:
        return self.payload

    def answer_all(self, requests: Sequence[Broadcast]) -> list[Payload]:
        return [Payload(requests[self.root].payload.parts)] * len(requests)


def tree_children(rank: int, size: int, root: int) -> list[int]:
    """The ranks to which a rank passes a broadcast on, in a binomial tree."""
    place = (rank - root) % size
    spans = (1 << i for i in range(size.bit_length()))
    return [(place + span + root) % size for span in spans if span > place and place + span < size]
