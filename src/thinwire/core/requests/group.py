"""RequestGroup: requests of one round that travel in one message: each rank sends the same data to all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..payloads import Payload, join
from .base import Addend, GatheredPayloads, Label, Request, World, all_labels


@dataclass(frozen=True, eq=False)
class RequestGroup(Request):
    """Answered with the list of its members' answers.

    Two ranks send one message for all members. More ranks perform one member after another: there, the best way for
    each depends on its length.

    Args:
        requests: merged requests of different kinds, each with `group_payload`, in an order that is equal on all ranks.
            The last one may have a `group_tail` instead.
    """

    requests: tuple[Request, ...]
    step: int = 0

    @property
    def labels(self) -> tuple[Label, ...]:  # type: ignore[override]
        return all_labels(self.requests)

    @property
    def expected_bytes(self) -> int:  # type: ignore[override]
        return sum([_dense_bytes(request) for request in self.requests])

    @property
    def tail(self) -> Addend | None:
        """What is sent behind the data of the other members."""
        return self.requests[-1].group_tail()

    @property
    def short_requests(self) -> tuple[Request, ...]:
        """The members whose data are joined."""
        return self.requests if self.tail is None else self.requests[:-1]

    def members(self) -> tuple[Request, ...]:
        return self.requests

    def has_common_header(self, world: World) -> bool:
        return world.size == 2

    def describe_form(self) -> str:
        return " and ".join(request.describe_form() for request in self.requests)

    def describe(self) -> str:
        return " and ".join(request.describe() for request in self.requests)

    def joined_payload(self) -> Payload:
        """The data of all members but the tail."""
        return join([_payload_of(request) for request in self.short_requests])

    def payload_to(self, rank: int) -> Payload:
        joined = self.joined_payload()
        return joined if self.tail is None else join([joined, Payload((self.tail.tensor.flatten(),))])

    def wire_bytes(self, world: World, sizes: Sequence[Any] | None = None) -> tuple[int, int]:
        lists = [None] * len(self.requests) if sizes is None else sizes
        pairs = [request.wire_bytes(world, own) for request, own in zip(self.requests, lists, strict=True)]
        return sum(sent for sent, _ in pairs), sum(received for _, received in pairs)

    def headers(self, world: World) -> tuple[int, int]:
        if world.size == 2:
            return 1, 1
        pairs = [request.headers(world) for request in self.requests]
        return sum(sent for sent, _ in pairs), sum(received for _, received in pairs)

    def frames(self, requests: Sequence[RequestGroup], world: World) -> tuple[list[Payload], list[Payload]]:
        if world.size == 2:
            return [self.joined_payload()], [requests[1 - world.rank].joined_payload()]
        pairs = [request.frames(each, world) for request, each in self._columns(requests)]
        return [frame for sent, _ in pairs for frame in sent], [frame for _, received in pairs for frame in received]

    def sizes_for(self, requests: Sequence[RequestGroup], rank: int) -> list[Any]:
        return [request.sizes_for(each, rank) for request, each in self._columns(requests)]

    def merge_key(self) -> tuple[str, ...]:
        return ("RequestGroup",)

    def answer_alone(self) -> list[Any]:
        return [request.answer_alone() for request in self.requests]

    def answer_if_identical(self, size: int) -> list[Any]:
        return [request.answer_if_identical(size) for request in self.requests]

    def answer_all(self, requests: Sequence[RequestGroup]) -> list[Any]:
        answers = [request.answer_all(each) for request, each in self._columns(requests)]
        return [list(of_rank) for of_rank in zip(*answers, strict=True)]

    def cut(self, payload: Payload) -> list[Payload]:
        """The inverse of `joined_payload`: one payload per member."""
        return payload.cut([_payload_of(request).num_parts for request in self.short_requests])

    def answer_from(self, payloads: Sequence[Payload]) -> list[Any]:
        """The answers but that of the tail, given the joined payloads of all ranks."""
        columns = zip(*[self.cut(payload) for payload in payloads], strict=True)
        pairs = zip(self.short_requests, columns, strict=True)
        return [request.answer_group(GatheredPayloads(column)) for request, column in pairs]

    def _columns(self, requests: Sequence[RequestGroup]) -> list[tuple[Request, list[Any]]]:
        """Each member with the same member of all ranks."""
        return [(request, [each.requests[i] for each in requests]) for i, request in enumerate(self.requests)]


def _payload_of(request: Request) -> Payload:
    payload = request.group_payload()
    assert payload is not None  # else it is not in a group
    return payload


def _dense_bytes(request: Request) -> int:
    tail = request.group_tail()
    return max(request.expected_bytes, _payload_of(request).num_bytes if tail is None else tail.tensor.nbytes)
