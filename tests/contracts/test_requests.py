"""What every kind of request promises: `fuse`, meters and drivers rely on nothing else. A new kind is listed in KINDS."""

import pytest
import torch

from thinwire import Meter, World, lockstep
from thinwire.core import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Label,
    NeighborExchange,
    Op,
    Payload,
    ReduceScatter,
    Request,
    RequestGroup,
    Work,
    fuse,
    fuse_flagged,
)
from thinwire.core.programs import drive
from thinwire.testing import REQUEST_LAWS
from thinwire.testing.requests import ask, plain


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
    "NeighborExchange": lambda r, n, i: NeighborExchange(
        tuple((to, payload(r, i)) for to in {(r + 1) % n} - {r}),
        tuple({(r - 1) % n} - {r}),
        (torch.float32, torch.uint8),
        group="ring",
    ),
    "Work": lambda r, n, i: Work(0.5 * (r + i)),
}


def test_every_kind_is_listed():
    def kinds_below(kind):
        return {kind} | {each for sub in kind.__subclasses__() for each in kinds_below(sub)}

    listed = {type(make(0, 2, 0)) for make in KINDS.values()}
    driven = {kind for kind in kinds_below(Request) - {Request} if kind.__module__.startswith("thinwire.core.requests")}
    assert listed == driven - {RequestGroup}  # which `fuse` makes of others


def long_sum(rank, size, place):
    return AllReduce(numbers(rank, place, 40_000))  # it travels behind the other members


@pytest.mark.parametrize("size", (1, 2, 3))
@pytest.mark.parametrize("last", (KINDS["AllReduce"], long_sum))
def test_a_group_is_answered_as_its_members_would_be_alone(size, last):
    makers = [KINDS["AllGather"], KINDS["AllReduce(max)"], last]
    meters, apart = ([Meter() for _ in range(size)] for _ in range(2))

    def together(rank):
        return (yield from fuse_flagged([ask(make(rank, size, 0)) for make in makers], False))[0]

    outs = lockstep([together(rank) for rank in range(size)], meters)
    for i, make in enumerate(makers):
        alone = lockstep([ask(make(rank, size, 0)) for rank in range(size)], apart)
        assert [plain(out[i]) for out in outs] == [plain(answer) for answer in alone]
    for one, other in zip(meters, apart, strict=True):
        headers = [meter.sum_by("kind")["header"].sent_bytes for meter in (one, other)]
        data = [meter.total().sent_bytes - header for meter, header in zip((one, other), headers, strict=True)]
        assert data[0] == data[1] + (size - 1)  # the flag
        if size == 2:  # one header instead of three
            assert headers[0] < headers[1]


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("law", REQUEST_LAWS, ids=str)
def test_every_request_keeps(law, make):
    law(make)


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
