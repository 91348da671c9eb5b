import pytest
import torch

from thinwire import lockstep, loopback
from thinwire.core import (
    AllGather,
    AllReduce,
    Broadcast,
    Label,
    Op,
    Payload,
    World,
    fuse,
    fuse_flagged,
    with_step,
)
from thinwire.core.requests import shard_sizes, tree_children


def summed(value, dtype=torch.float32, op=Op.SUM):
    total = yield AllReduce(torch.tensor([float(value)], dtype=dtype), op, (Label(f"layer{value}", "values", 4, 32.0),))
    return total.item()


def gathered(rank, parts):
    payloads = yield AllGather(Payload(tuple(torch.full((rank + 1,), i) for i in range(parts))))
    return [[part.tolist() for part in payload.parts] for payload in payloads]


def broadcast(rank, root):
    payload = yield Broadcast(Payload((torch.tensor([rank]),)), root)
    return payload.parts[0].item()


def two_rounds(value):
    first = yield AllReduce(torch.tensor([float(value)]))
    second = yield AllReduce(first + 1)
    return second.item()


def nothing():
    return "done"
    yield


def count_requests(program):
    requests, answer = [], None
    while True:
        try:
            request = program.send(answer)
        except StopIteration as done:
            return requests, done.value
        requests.append(request)
        answer = loopback(_once(request))


def _once(request):
    return (yield request)


def test_fused_programs_get_the_answers_they_would_get_alone():
    def worker(rank):
        inside = [
            summed(1),
            gathered(rank, 2),
            summed(5),
            two_rounds(rank),
            broadcast(rank, 1),
            nothing(),
            gathered(rank, 1),
        ]
        return fuse(inside)

    first, second = lockstep([worker(0), worker(1)])
    assert first == second
    assert first[:3] == [2.0, [[[0], [1]], [[0, 0], [1, 1]]], 10.0]
    assert first[3:] == [4.0, 1, "done", [[[0]], [[0, 0]]]]


def test_requests_of_one_round_travel_together_by_kind_and_type():
    programs = [summed(1), summed(2), summed(3, torch.float64), summed(4, op=Op.MAX), gathered(0, 1), gathered(0, 2)]
    requests, results = count_requests(fuse(programs))
    assert len(requests) == 4
    assert results[:4] == [1.0, 2.0, 3.0, 4.0]
    joined = next(r for r in requests if isinstance(r, AllReduce) and r.tensor.numel() == 2)
    assert [label.layer for label in joined.labels] == ["layer1", "layer2"]


@pytest.mark.parametrize(
    "inside",
    (
        lambda: [summed(1)],
        lambda: [gathered(0, 2)],
        lambda: [nothing()],
        lambda: [broadcast(0, 0)],
        lambda: [summed(1, torch.uint8, Op.OR)],
        lambda: [summed(1, torch.int32)],
    ),
)
def test_a_flag_rides_along_and_reaches_everybody(inside):
    for flags in ((False, False, False), (False, True, False), (True, True, True)):
        outs = lockstep([fuse_flagged(inside(), flag) for flag in flags])
        assert [raised for _, raised in outs] == [any(flags)] * 3


def test_a_flag_costs_no_message_of_its_own_where_something_is_sent():
    requests, _ = count_requests(fuse_flagged([summed(1), summed(2)], True))
    assert len(requests) == 1 and requests[0].tensor.numel() == 3
    requests, _ = count_requests(fuse_flagged([gathered(0, 1)], False))
    assert len(requests) == 1 and len(requests[0].payload.parts) == 2
    requests, _ = count_requests(fuse_flagged([summed(2, torch.uint8, Op.OR)], True))
    assert len(requests) == 1 and requests[0].tensor.tolist() == [2, 1]


def test_a_flag_survives_more_ranks_than_a_byte_counts():
    outs = lockstep([fuse_flagged([nothing()], True) for _ in range(256)])
    assert all(raised for _, raised in outs)


def test_a_stamp_reaches_every_request():
    requests, _ = count_requests(with_step(two_rounds(1), 7))
    assert [request.step for request in requests] == [7, 7]


@pytest.mark.parametrize("size", (1, 2, 3, 4, 7, 64))
def test_bytes_sent_are_bytes_received_over_all_ranks(size):
    tensor, sizes = torch.zeros(101), [10 * r + 4 for r in range(size)]
    for request_of in (
        lambda r: AllReduce(tensor),
        lambda r: AllGather(Payload((torch.zeros(sizes[r], dtype=torch.uint8),))),
        lambda r: Broadcast(Payload((torch.zeros(sizes[r], dtype=torch.uint8),)), root=size // 2),
    ):
        pairs = [request_of(r).wire_bytes(World(r, size), sizes) for r in range(size)]
        assert sum(sent for sent, _ in pairs) == sum(received for _, received in pairs)
    total = sum(AllReduce(tensor).wire_bytes(World(r, size))[0] for r in range(size))
    assert total == 2 * (size - 1) * 404  # 2(n-1)/n of the tensor, n times


@pytest.mark.parametrize("size", (1, 2, 3, 5, 8, 13))
def test_a_broadcast_tree_reaches_every_rank_once(size):
    for root in range(size):
        reached = [root] + [child for rank in range(size) for child in tree_children(rank, size, root)]
        assert sorted(reached) == list(range(size))


def test_shards_cover_all_elements():
    assert shard_sizes(10, 4) == [3, 3, 2, 2] and shard_sizes(2, 3) == [1, 1, 0]
