"""What every kind of request promises: `fuse`, meters and drivers rely on nothing else. A new kind is listed in KINDS."""

import pytest
import torch

from thinwire import Meter, World, lockstep, loopback
from thinwire.core import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Gathered,
    Label,
    Op,
    Payload,
    ReduceScatter,
    Request,
    Swap,
    Work,
    fuse,
    fuse_flagged,
)
from thinwire.core.programs import drive
from thinwire.drivers.headers import Header, framed_bytes, header_bytes, headers_of


def numbers(rank, place, count):
    return torch.arange(count, dtype=torch.float32) + 100 * place + 10 * rank


def payload(rank, place):
    return Payload((numbers(rank, place, rank + 2), torch.full((place + 1,), rank, dtype=torch.uint8)))


KINDS = {
    "AllReduce": lambda r, n, i: AllReduce(numbers(r, i, 5 + i)),
    "AllReduce(max)": lambda r, n, i: AllReduce(numbers(r, i, 3), Op.MAX),
    "AllReduce(or)": lambda r, n, i: AllReduce(torch.tensor([1 << r, i], dtype=torch.uint8), Op.OR),
    "AllGather": lambda r, n, i: AllGather(payload(r, i)),
    "AllToAll": lambda r, n, i: AllToAll(tuple(payload((r + to) % n, i) for to in range(n))),
    "Broadcast": lambda r, n, i: Broadcast(payload(r, i), root=n - 1),
    "ReduceScatter": lambda r, n, i: ReduceScatter(tuple(numbers(r, i, to + 1 + i) for to in range(n)), r),
    "Swap": lambda r, n, i: Swap(
        tuple((to, payload(r, i)) for to in {(r + 1) % n} - {r}),
        tuple({(r - 1) % n} - {r}),
        (torch.float32, torch.uint8),
        among="ring",
    ),
    "Work": lambda r, n, i: Work(0.5 * (r + i)),
}
kinds = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
sizes = pytest.mark.parametrize("size", (1, 2, 3, 5))


def ask(request):
    return (yield request)


def plain(answer):
    """An answer as plain numbers."""
    if isinstance(answer, Gathered):
        return [plain(each) for each in answer]
    if isinstance(answer, Payload):
        return [part.tolist() for part in answer.parts]
    return answer.tolist() if isinstance(answer, torch.Tensor) else answer


def answers_of(make, size, place=0, meters=None):
    return [plain(a) for a in lockstep([ask(make(r, size, place)) for r in range(size)], meters)]


def test_every_kind_is_listed():
    def kinds_below(kind):
        return {kind} | {each for sub in kind.__subclasses__() for each in kinds_below(sub)}

    listed = {type(make(0, 2, 0)) for make in KINDS.values()}
    driven = {kind for kind in kinds_below(Request) - {Request} if kind.__module__.startswith("thinwire.core.requests")}
    assert listed == driven


@kinds
@sizes
def test_requests_of_one_round_are_answered_as_each_would_be_alone(make, size):
    alone = [answers_of(make, size, place) for place in range(3)]
    outs = lockstep([fuse([ask(make(r, size, place)) for place in range(3)]) for r in range(size)])
    assert [[plain(out[place]) for out in outs] for place in range(3)] == alone


@kinds
def test_requests_of_one_round_travel_as_one(make):
    asked = []
    first = [make(0, 2, place) for place in range(3)]

    def perform(request):
        asked.append(request)
        return request.answer_alike(2)

    drive(fuse([ask(request) for request in first]), perform)
    assert len(asked) == 1 and type(asked[0]) is type(first[0])
    assert len({request.merge_key() for request in first}) == 1


@kinds
@sizes
def test_ranks_that_ask_for_the_same_agree_in_what_they_compare(make, size):
    requests = [make(r, size, 1) for r in range(size)]
    assert len({request.signature() for request in requests}) == 1
    assert len({request.merge_key() for request in requests}) == 1


@kinds
@sizes
def test_what_is_sent_is_what_is_received(make, size):
    requests = [make(r, size, 1) for r in range(size)]
    worlds = [World(r, size) for r in range(size)]
    data = [q.wire_bytes(w, q.sizes_for(requests, w.rank)) for q, w in zip(requests, worlds, strict=True)]
    headers = [header_bytes(requests, world) for world in worlds]
    for pairs in (data, headers):
        assert sum(sent for sent, _ in pairs) == sum(received for _, received in pairs)
    if size == 1 or not requests[0].on_wire:
        assert set(data) == set(headers) == {(0, 0)}


@kinds
@sizes
def test_a_meter_counts_it_once_where_it_is_on_the_wire(make, size):
    meters = [Meter() for _ in range(size)]
    answers_of(make, size, meters=meters)
    assert [meter.total().requests for meter in meters] == [int(make(0, size, 0).on_wire)] * size


@kinds
def test_headers_announce_what_goes_to_each_rank(make):
    request = make(1, 3, 0)
    lengths = [framed_bytes(request.payload_to(rank)) for rank in range(3)]
    for rank, header in enumerate(headers_of(request, lengths)):
        sent = request.payload_to(rank)
        assert Header.unpack(header.pack()) == header
        assert header.signature == request.signature() and (header.nbytes > 0) == bool(sent.parts)


@kinds
@pytest.mark.parametrize("raised", (False, True))
def test_a_flag_reaches_all_ranks_whatever_it_travels_with(make, raised):
    if isinstance(make(0, 3, 0), Swap):
        pytest.skip("a Swap tells its partners only: see test_swap.py")
    programs = [fuse_flagged([ask(make(r, 3, 0))], raised and r == 1) for r in range(3)]
    outs = lockstep(programs)
    assert [flag for _, flag in outs] == [raised] * 3
    assert [plain(values[0]) for values, _ in outs] == answers_of(make, 3)


@kinds
def test_alone_and_alike_are_what_a_world_of_one_and_of_equals_would_answer(make):
    assert plain(loopback(ask(make(0, 1, 2)))) == answers_of(make, 1, 2)[0]
    if not isinstance(make(0, 2, 0), Swap | AllToAll | ReduceScatter):  # what rank 0 sends depends on the receiver
        assert plain(make(0, 3, 1).answer_alike(3)) == answers_of(lambda r, n, i: make(0, n, i), 3, 1)[0]


def test_a_reduce_scatter_costs_half_of_an_all_reduce():
    shards = tuple(torch.zeros(25) for _ in range(4))
    half = [ReduceScatter(shards, r).wire_bytes(World(r, 4)) for r in range(4)]
    whole = [AllReduce(torch.zeros(100)).wire_bytes(World(r, 4)) for r in range(4)]
    assert [(2 * sent, 2 * received) for sent, received in half] == whole


def test_work_delays_no_flag_and_sends_nothing():
    meters = [Meter() for _ in range(2)]

    def program(rank):
        yield Work(1.0)
        return (yield AllReduce(torch.ones(2), labels=(Label("a", "values", 8, 64.0),)))

    outs = lockstep([fuse_flagged([program(r)], r == 0) for r in range(2)], meters)
    assert [flag for _, flag in outs] == [True, True]
    assert meters[0].total().requests == 1  # the flag is in the all-reduce


@pytest.mark.parametrize("seconds", (-1.0, float("nan"), float("inf")))
def test_work_takes_a_time_that_can_pass(seconds):
    with pytest.raises(ValueError, match="Work: seconds must be finite"):
        Work(seconds)


def test_a_failed_request_is_thrown_into_its_program():
    seen = []

    def program():
        try:
            yield AllReduce(torch.ones(1))
        except ZeroDivisionError:
            seen.append("cleaned up")
            raise

    def perform(request):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        drive(fuse([program()]), perform)
    assert seen == ["cleaned up"]
