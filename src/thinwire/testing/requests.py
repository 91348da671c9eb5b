"""Laws of requests; `fuse`, meters and drivers rely on nothing else.

A kind of request is given as a function make(rank, size, place): the request of this rank of a world, where `place`
distinguishes several requests of one round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..core import GatheredPayloads, Payload, Program, Request, World, fuse, fuse_flagged, loopback
from ..core.programs import drive
from ..drivers.headers import RequestHeader, framed_bytes, header_bytes, make_header
from ..drivers.lockstep import lockstep
from ..drivers.meter import Meter
from .laws import Law, check_all, law

REQUEST_LAWS: list[Law] = []
SIZES = (1, 2, 3, 5)

Make = Callable[[int, int, int], Request]


def check_request(make: Make) -> None:
    """Check all laws of requests.

    Args:
        make: make(rank, size, place) returns the request of a rank; `place` distinguishes several of one round.

    Raises:
        AssertionError: a law is broken.
    """
    check_all(REQUEST_LAWS, make)


def ask(request: Request) -> Program[Any]:
    return (yield request)


def plain(answer: Any) -> Any:
    """An answer as plain numbers."""
    if isinstance(answer, GatheredPayloads):
        return [plain(each) for each in answer]
    if isinstance(answer, Payload):
        return [part.tolist() for part in answer.parts]
    return answer.tolist() if isinstance(answer, torch.Tensor) else answer


def answers_of(make: Make, size: int, place: int = 0, meters: Sequence[Meter] | None = None) -> list[Any]:
    return [plain(a) for a in lockstep([ask(make(r, size, place)) for r in range(size)], meters)]


@law(REQUEST_LAWS, size=SIZES)
def requests_of_one_round_are_answered_as_each_would_be_alone(make: Make, size: int) -> None:
    alone = [answers_of(make, size, place) for place in range(3)]
    outs = lockstep([fuse([ask(make(r, size, place)) for place in range(3)]) for r in range(size)])
    assert [[plain(out[place]) for out in outs] for place in range(3)] == alone


@law(REQUEST_LAWS)
def requests_of_one_round_travel_as_one(make: Make) -> None:
    asked: list[Request] = []
    first = [make(0, 2, place) for place in range(3)]

    def perform(request: Request) -> Any:
        asked.append(request)
        return request.answer_if_identical(2)

    drive(fuse([ask(request) for request in first]), perform)
    assert len(asked) == 1 and type(asked[0]) is type(first[0])
    assert len({request.merge_key() for request in first}) == 1


@law(REQUEST_LAWS, size=SIZES)
def ranks_that_ask_for_the_same_agree_in_what_they_compare(make: Make, size: int) -> None:
    requests = [make(r, size, 1) for r in range(size)]
    assert len({request.signature() for request in requests}) == 1
    assert len({request.merge_key() for request in requests}) == 1


@law(REQUEST_LAWS, size=SIZES)
def what_is_sent_is_what_is_received(make: Make, size: int) -> None:
    requests = [make(r, size, 1) for r in range(size)]
    worlds = [World(r, size) for r in range(size)]
    data = [q.wire_bytes(w, q.sizes_for(requests, w.rank)) for q, w in zip(requests, worlds, strict=True)]
    headers = [header_bytes(requests, world) for world in worlds]
    for pairs in (data, headers):
        assert sum(sent for sent, _ in pairs) == sum(received for _, received in pairs)
    if size == 1 or not requests[0].on_wire:
        assert set(data) == set(headers) == {(0, 0)}


@law(REQUEST_LAWS, size=SIZES)
def a_meter_counts_it_once_where_it_is_on_the_wire(make: Make, size: int) -> None:
    meters = [Meter() for _ in range(size)]
    answers_of(make, size, meters=meters)
    assert [meter.total().requests for meter in meters] == [int(make(0, size, 0).on_wire)] * size


@law(REQUEST_LAWS)
def headers_announce_what_goes_to_each_rank(make: Make) -> None:
    request = make(1, 3, 0)
    for rank in range(3):
        sent = request.payload_to(rank)
        header = make_header(request, framed_bytes(sent))
        assert RequestHeader.unpack(header.pack()) == header
        assert header.signature == request.signature() and (header.num_bytes > 0) == bool(sent.parts)


@law(REQUEST_LAWS, raised=(False, True))
def a_flag_reaches_all_ranks_whatever_it_travels_with(make: Make, raised: bool) -> None:
    if make(0, 3, 0).scope() is not None:
        return  # it tells its partners only
    programs = [fuse_flagged([ask(make(r, 3, 0))], raised and r == 1) for r in range(3)]
    outs = lockstep(programs)
    assert [flag for _, flag in outs] == [raised] * 3
    assert [plain(values[0]) for values, _ in outs] == answers_of(make, 3)


@law(REQUEST_LAWS)
def alone_is_what_a_world_of_one_would_answer(make: Make) -> None:
    assert plain(loopback(ask(make(0, 1, 2)))) == answers_of(make, 1, 2)[0]


@law(REQUEST_LAWS)
def alike_is_what_a_world_of_equals_would_answer(make: Make) -> None:
    request = make(0, 3, 1)
    if request.scope() is not None:
        return  # partners are never equals
    answers = answers_of(lambda rank, size, place: make(0, size, place), 3, 1)
    if all(answer == answers[0] for answer in answers):  # else what is sent depends on the receiver
        assert plain(request.answer_if_identical(3)) == answers[0]
