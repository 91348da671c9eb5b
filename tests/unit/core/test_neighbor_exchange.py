"""NeighborExchange: a request that reaches neighbors only, alone, fused and flagged."""

import pytest
import torch

from thinwire import Meter, ProtocolError, World, lockstep, loopback
from thinwire.core import AllReduce, Label, NeighborExchange, Payload, fuse, fuse_flagged


def payload(*numbers, dtype=torch.float32):
    return Payload((torch.tensor(numbers, dtype=dtype),))


def ask(request):
    return (yield request)


def told(outgoing, sources, **settings):
    """One NeighborExchange; gives (numbers received, missing sources)."""
    answer = yield NeighborExchange(tuple(outgoing), tuple(sources), **{"form": (torch.float32,), **settings})
    return [p.parts[0].tolist() for p in answer], sorted(answer.missing)


def to_the_next(rank, size, **settings):
    """Round a ring in one direction: rank and 10 · rank."""
    after, before = (rank + 1) % size, (rank - 1) % size
    if size == 1:
        return told([], [], **settings)
    return told([(after, payload(rank, 10 * rank))], [before], **settings)


def test_each_partner_gets_its_own_payload_in_the_order_of_sources():
    requests = [
        NeighborExchange(((1, payload(1)), (2, payload(2, 2))), (2, 1)),
        NeighborExchange(((0, payload(10)),), (0,)),
        NeighborExchange(((0, payload(20, 20, 20)),), (0,)),
    ]
    answers = lockstep([ask(request) for request in requests])
    got = [[p.parts[0].tolist() for p in answer] for answer in answers]
    assert got == [[[20, 20, 20], [10]], [[1]], [[2, 2]]]


def test_a_directed_graph_and_ranks_without_partners_are_served():
    silent = {"form": (torch.float32,)}
    answers = lockstep(
        [
            ask(NeighborExchange(((1, payload(5)),), ())),
            ask(NeighborExchange((), (0,), **silent)),
            ask(NeighborExchange((), (), **silent)),
        ]
    )
    assert [len(answer) for answer in answers] == [0, 1, 0]
    assert answers[1][0].parts[0].tolist() == [5]


def test_a_world_of_one_swaps_with_nobody():
    assert loopback(to_the_next(0, 1)) == ([], [])
    with pytest.raises(ProtocolError, match=r"a world of one rank has no neighbors, got \(to \[1\], from \[\]\)"):
        loopback(ask(NeighborExchange(((1, payload(1)),), ())))


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (
            NeighborExchange((), (), (torch.float32,), step=4),
            r"step 4: rank 0 expects a message of rank 1, which sends none",
        ),
        (NeighborExchange(((0, payload(1)),), (), step=4), r"step 4: rank 0 sends to rank 1, which does not expect it"),
        (
            NeighborExchange(((1, payload(1)),), (), step=4),
            r"step 4: rank 1 of 2 has neighbor 1 .*neighbors must be other ranks",
        ),
        (NeighborExchange(((7, payload(1)),), (), step=4), r"step 4: rank 1 of 2 has neighbor 7"),
        (
            NeighborExchange(((0, payload(1, dtype=torch.int16)),), (0,), step=4),
            r"ranks disagree: .*NeighborExchange of \(int16\)",
        ),
    ],
)
def test_neighbors_that_disagree_are_named(second, words):
    with pytest.raises(ProtocolError, match=words):
        lockstep([ask(NeighborExchange(((1, payload(1)),), (1,), step=4)), ask(second)])


def test_each_neighbor_occurs_once_and_forms_agree():
    with pytest.raises(ValueError, match=r"each neighbor may occur once, got \[1, 1\]"):
        NeighborExchange(((1, payload(1)), (1, payload(2))), ())
    with pytest.raises(TypeError, match=r"must have parts \(float32\), got \(float32\), \(int16\)"):
        NeighborExchange(((1, payload(1)), (2, payload(2, dtype=torch.int16))), ())


def test_exchanges_of_one_group_are_merged_and_groups_are_ordered_alike_on_all_ranks():
    size, meters = 3, [Meter() for _ in range(3)]
    labels = (Label("w", "values", 8, 64.0),)

    def worker(rank):
        far = told([((rank + 2) % size, payload(-rank))], [(rank - 2) % size], group="far")
        first, second = (to_the_next(rank, size, group="near", labels=labels) for _ in range(2))
        return fuse([far, first, second, ask(AllReduce(torch.ones(1)))])

    outs = lockstep([worker(rank) for rank in range(size)], meters)
    assert [out[1] for out in outs] == [out[2] for out in outs] == [([[2, 20]], []), ([[0, 0]], []), ([[1, 10]], [])]
    assert [out[0][0] for out in outs] == [[[-1]], [[-2]], [[0]]]
    assert all(meter.sum_by("collective")["NeighborExchange"].requests == 2 for meter in meters)
    assert all(meter.sum_by("layer")["w"].payload_bytes == 16 for meter in meters)


def test_one_group_with_different_neighbors_is_refused():
    with pytest.raises(ProtocolError, match=r"in group '' have neighbors \(to \[1\], from \[2\]\) and \(to \[2\]"):
        lockstep([fuse([to_the_next(r, 3), told([((r + 2) % 3, payload(0))], [(r + 1) % 3])]) for r in range(3)])


@pytest.mark.parametrize("size", (1, 2, 3, 4))
def test_a_flag_goes_to_neighbors_that_tolerate_it_and_no_farther(size):
    for bad in range(size):
        programs = [fuse_flagged([to_the_next(r, size, tolerate_missing=True)], r == bad) for r in range(size)]
        outs = lockstep(programs)
        assert [raised for _, raised in outs] == [False] * size
        missing = [out[1] for (out,), _ in outs]
        assert missing == [[bad] if size > 1 and (bad + 1) % size == rank else [] for rank in range(size)]


@pytest.mark.parametrize("size", (1, 2, 3, 5))
def test_a_flag_goes_all_round_with_programs_that_do(size):
    def round_and_round(rank):
        for _ in range(size - 1):
            yield from to_the_next(rank, size)

    for bad in range(size):
        programs = [round_and_round(rank) for rank in range(size)]
        if size == 1:
            programs = [to_the_next(0, 1)]
        outs = lockstep([fuse_flagged([program], rank == bad) for rank, program in enumerate(programs)])
        assert [raised for _, raised in outs] == [True] * size


def test_a_flag_that_reaches_all_by_another_message_ends_the_step_for_all():
    for bad in range(3):
        programs = [
            fuse_flagged([to_the_next(r, 3, tolerate_missing=True), ask(AllReduce(torch.ones(1)))], r == bad)
            for r in range(3)
        ]
        assert [raised for _, raised in lockstep(programs)] == [True] * 3


def test_bytes_and_headers_go_to_neighbors_only():
    meters = [Meter() for _ in range(4)]
    lockstep([to_the_next(rank, 4) for rank in range(4)], meters)
    for meter in meters:
        kinds = meter.sum_by("kind")
        assert (kinds["values"].sent_bytes, kinds["values"].received_bytes) == (8, 8)
        assert (kinds["header"].sent_bytes, kinds["header"].received_bytes) == (25, 25)
    request = NeighborExchange(((1, payload(1)), (2, payload(1))), (3,))
    assert request.wire_bytes(World(0, 4)) == (8, 4) and request.wire_bytes(World(0, 4), [12]) == (8, 12)
    assert NeighborExchange((), (1,), (torch.uint8,), "ring()").describe() == "NeighborExchange in ring() of (uint8)"
