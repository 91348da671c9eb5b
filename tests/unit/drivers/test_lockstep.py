import pytest
import torch

from thinwire import Meter, ProtocolError, lockstep
from thinwire.core import AllGather, AllReduce, Broadcast, Label, Op, Payload, payload_labels


def ask(request):
    return (yield request)


def finish():
    return None
    yield


def test_ranks_that_ask_for_different_things_are_named_with_step_and_requests():
    wishes = [AllReduce(torch.zeros(1024), step=12), AllGather(Payload((torch.zeros(3),)), step=12)]
    with pytest.raises(
        ProtocolError,
        match=r"step 12: .*rank 0 requests AllReduce\(sum\) of 1024 float32, 4096 B.*rank 1 requests AllGather",
    ):
        lockstep([ask(wish) for wish in wishes])


@pytest.mark.parametrize(
    "other",
    [
        AllReduce(torch.zeros(3)),
        AllReduce(torch.zeros(4).double()),
        AllReduce(torch.zeros(4), step=1),
        AllGather(Payload(())),
    ],
)
def test_sizes_types_steps_and_kinds_must_agree(other):
    with pytest.raises(ProtocolError, match="ranks disagree"):
        lockstep([ask(AllReduce(torch.zeros(4))), ask(other)])


def test_a_rank_that_has_finished_is_not_waited_for():
    with pytest.raises(ProtocolError, match="rank 1 requests nothing, it has finished"):
        lockstep([ask(AllReduce(torch.zeros(4))), finish()])


def test_answers_are_each_ranks_own():
    first, second = lockstep([ask(AllReduce(torch.ones(2))), ask(AllReduce(torch.ones(2)))])
    first += 1
    assert second.tolist() == [2.0, 2.0]


def test_bits_of_any_rank_are_set_in_the_answer():
    marks = [torch.tensor([1, 8, 0], dtype=torch.uint8), torch.tensor([2, 8, 0], dtype=torch.uint8)]
    answers = lockstep([ask(AllReduce(mark, Op.OR)) for mark in marks])
    assert [answer.tolist() for answer in answers] == [[3, 8, 0], [3, 8, 0]]


def test_numbers_with_fractions_have_no_bits_to_combine():
    with pytest.raises(
        TypeError, match=r"AllReduce\(or\): the tensor must be an integer type, got torch.float32; use uint8"
    ):
        AllReduce(torch.zeros(3), Op.OR)


def test_the_meter_merges_old_steps_and_keeps_the_sum():
    meters = [Meter(keep_steps=3), Meter(keep_steps=3)]

    def many():
        for step in range(10):
            yield AllReduce(torch.ones(5), step=step)

    lockstep([many(), many()], meters)
    by_step = meters[0].sum_by("step")
    assert set(by_step) == {-1, 7, 8, 9}
    assert meters[0].total().requests == 10
    assert meters[0].total().sent_bytes == 10 * (20 + 24)
    assert {kind: t.sent_bytes for kind, t in meters[0].sum_by("kind").items()} == {"values": 200, "header": 240}


def test_a_broadcast_is_handed_over_by_its_root_alone():
    meters = [Meter() for _ in range(3)]
    payload = Payload((torch.zeros(7),))
    lockstep([ask(Broadcast(payload, 1, payload_labels("plan", payload))) for _ in range(3)], meters)
    assert [meter.total().payload_bytes for meter in meters] == [0, 28, 0]
    assert sum(m.total().sent_bytes for m in meters) == sum(m.total().received_bytes for m in meters)


def test_long_lists_of_layers_are_told_apart():
    def request(last):
        labels = tuple(Label(name, "values", 4, 32.0) for name in [*(f"layer{i}" for i in range(500)), last])
        return AllReduce(torch.zeros(501), labels=labels)

    with pytest.raises(ProtocolError, match="501 layers"):
        lockstep([ask(request("here")), ask(request("there"))])
