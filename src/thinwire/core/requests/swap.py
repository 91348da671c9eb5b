"""Swap: payloads between partners, of which no other rank hears."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ..errors import ProtocolError
from ..tensors import Payload
from .base import (
    Gathered,
    Label,
    Request,
    World,
    all_expected,
    all_labels,
    cut_all,
    flag_payload,
    join,
    type_names,
    types_of,
)


@dataclass(frozen=True, eq=False)
class Swap(Request):
    """A payload to each named rank; answered with one from each of `sources`, in their order (`Gathered`).

    All of one form: `form` has the types of the parts, which a rank that only receives must say. No other rank hears
    of it. among: which ranks talk to which, in words that are equal on all ranks; Swaps of one round that have them in
    common have their partners in common too, and travel as one. forgiving: this rank can do without a source that had
    to raise its flag; the answer names it in `absent`. Else its flag ends the step for each rank that hears of it.
    expects: about how many bytes may come from one source, where nothing as long is sent. Labels of a rank that sends
    nothing say what it is about, and are not counted.
    """

    outgoing: tuple[tuple[int, Payload], ...]
    sources: tuple[int, ...]
    form: tuple[torch.dtype, ...] = ()
    among: str = ""
    forgiving: bool = False
    expects: int = 0
    labels: tuple[Label, ...] = ()
    step: int = 0

    def __post_init__(self) -> None:
        for ranks in (self.receivers, self.sources):
            if len(set(ranks)) < len(ranks):
                raise ValueError(f"Swap: each partner once, got {list(ranks)}; join what goes to one into one payload")
        if not self.form and self.outgoing:
            object.__setattr__(self, "form", types_of(self.outgoing[0][1]))
        if any(types_of(payload) != self.form for _, payload in self.outgoing):
            forms = sorted({type_names(types_of(payload)) for _, payload in self.outgoing})
            raise TypeError(f"Swap: payloads must be of the form ({type_names(self.form)}), got ({'), ('.join(forms)})")

    @property
    def receivers(self) -> tuple[int, ...]:
        return tuple(to for to, _ in self.outgoing)

    def partners(self) -> str:
        """For an error text."""
        return f"(to {list(self.receivers)}, from {list(self.sources)})"

    def describe_form(self) -> str:
        among = f" among {self.among}" if self.among else ""
        return f"Swap{among} of ({type_names(self.form)})"

    def check(self, world: World) -> None:
        """Partners must be other ranks of this world."""
        ranks = (*self.receivers, *self.sources)
        odd = [rank for rank in ranks if rank == world.rank or not 0 <= rank < world.size]
        if odd:
            raise ProtocolError(
                f"step {self.step}: rank {world.rank} of {world.size} swaps with {odd[0]} {self.partners()}; "
                "partners are other ranks"
            )

    def contributes(self, world: World) -> bool:
        return bool(self.outgoing) or world.size == 1

    def payload_to(self, rank: int) -> Payload:
        return dict(self.outgoing).get(rank, Payload(()))

    def wire_bytes(self, world: World, sizes: Sequence[int] | None = None) -> tuple[int, int]:
        leaving = [payload.nbytes for _, payload in self.outgoing]
        return sum(leaving), sum(leaving[:1]) * len(self.sources) if sizes is None else sum(sizes)

    def headers(self, world: World) -> tuple[int, int]:
        return len(self.outgoing), len(self.sources)

    def frames(self, requests: Sequence[Swap], world: World) -> tuple[list[Payload], list[Payload]]:
        received = [requests[source].payload_to(world.rank) for source in self.sources]
        return [payload for _, payload in self.outgoing], received

    def sizes_for(self, requests: Sequence[Swap], rank: int) -> list[int]:
        return [requests[source].payload_to(rank).nbytes for source in self.sources]

    def merge_key(self) -> tuple[str, ...]:
        return ("Swap", self.among)  # not by partners: those differ from rank to rank, and so would the order

    def merge(self, group: Sequence[Swap]) -> Swap:
        if odd := [swap for swap in group if (swap.receivers, swap.sources) != (self.receivers, self.sources)]:
            raise ProtocolError(
                f"step {self.step}: Swaps among {self.among!r} have partners {self.partners()} and "
                f"{odd[0].partners()}; those of one round with other partners need another name in `among`"
            )
        boxes = zip(*[[payload for _, payload in swap.outgoing] for swap in group], strict=True)
        return replace(
            self,
            outgoing=tuple(zip(self.receivers, map(join, boxes), strict=True)),
            form=tuple(dtype for swap in group for dtype in swap.form),
            forgiving=all(swap.forgiving for swap in group),
            expects=all_expected(group),
            labels=all_labels(group),
        )

    def split(self, group: Sequence[Swap], answer: Gathered) -> list[Gathered]:
        return cut_all(answer, [len(swap.form) for swap in group])

    def scope(self) -> str:
        return self.among

    def make_flag(self, flag: bool, group: Sequence[Swap]) -> Swap:
        payload, label = flag_payload(flag)
        return replace(
            self,
            outgoing=tuple((to, payload) for to in self.receivers),
            form=(torch.uint8,),
            forgiving=all(swap.forgiving for swap in group),
            expects=1,
            labels=(label,),
        )

    def read_flag(self, answer: Gathered, flag: bool) -> tuple[bool, frozenset[int]]:
        pairs = zip(self.sources, answer, strict=True)
        absent = frozenset(source for source, payload in pairs if bool(payload.parts[0].any()))
        return not self.forgiving and (flag or bool(absent)), absent

    def leave_out(self, answer: Gathered, absent: frozenset[int]) -> None:
        if self.forgiving:
            answer.absent = absent

    def answer_alone(self) -> Gathered:
        if self.outgoing or self.sources:
            raise ProtocolError(f"step {self.step}: rank 0 is alone, but swaps with ranks {self.partners()}")
        return Gathered()

    def answer_alike(self, size: int) -> Gathered:
        return Gathered([payload for _, payload in self.outgoing[:1]] * len(self.sources))

    def answer_all(self, requests: Sequence[Swap]) -> list[Gathered]:
        check_pairs(requests)
        return [
            Gathered(Payload(requests[source].payload_to(rank).parts) for source in request.sources)
            for rank, request in enumerate(requests)
        ]


def check_pairs(requests: Sequence[Swap]) -> None:
    """A rank that waits for a message is sent one, and one that is sent a message waits for it; else both are named."""
    for rank, request in enumerate(requests):
        request.check(World(rank, len(requests)))
    for rank, request in enumerate(requests):
        for source in request.sources:
            if rank not in requests[source].receivers:
                raise ProtocolError(
                    f"step {request.step}: rank {rank} waits for rank {source}, which sends it nothing "
                    f"{requests[source].partners()}, in {request.describe()}"
                )
        for to in request.receivers:
            if rank not in requests[to].sources:
                raise ProtocolError(
                    f"step {request.step}: rank {rank} sends to rank {to}, which does not wait for it "
                    f"{requests[to].partners()}, in {request.describe()}"
                )
