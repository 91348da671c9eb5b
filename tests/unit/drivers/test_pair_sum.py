"""Long sums of two ranks, added while they are received: the bits of one addition, and errors that name the rank."""

import pytest
import torch

from helpers import pair_sum_jobs as jobs
from thinwire.core import AllReduce, Op, fuse
from thinwire.drivers.lockstep import lockstep
from thinwire.drivers.pair_sum import CHUNK_BYTES, receive_sum
from thinwire.wire import as_bytes


@pytest.mark.parametrize("count", (1, 5, CHUNK_BYTES // 4, CHUNK_BYTES // 4 + 1, CHUNK_BYTES))
def test_a_receiver_asks_for_every_byte_once_and_adds_each_chunk(count):
    own, theirs = torch.randn(count), torch.randn(count)
    total, data, at = torch.empty(count), as_bytes(theirs).numpy(), 0
    for buffer in receive_sum(own, total):
        buffer[:] = memoryview(data[at : at + buffer.nbytes])
        at += buffer.nbytes
    assert at == theirs.nbytes and torch.equal(total, own + theirs)


def test_sums_of_any_type_and_length_have_the_bits_of_one_addition(pool):
    assert pool.run(2, jobs.sum_long_tensors) == [[], []]


@pytest.mark.parametrize("flags", ((False, False), (True, False), (False, True)))
def test_a_long_sum_travels_behind_short_requests_and_the_flag_in_one_message(pool, flags):
    for is_right, raised, others in pool.run(2, jobs.sum_behind_others, flags):
        assert is_right and raised == any(flags)
        assert others <= 24 + 48 + 4 + 12  # one header, the two short tensors, the flag and lengths


def test_a_strided_tensor_is_summed_in_its_shape(pool):
    assert pool.run(2, jobs.sum_strided_tensor) == [True, True]


@pytest.mark.parametrize("size", (2, 3))
def test_the_answer_is_written_to_the_given_tensor(pool, size):
    assert pool.run(size, jobs.sum_into, Op.SUM) == [(True, True)] * size


def test_another_operation_between_two_ranks_may_ignore_the_given_tensor(pool):
    assert [is_right for is_right, _ in pool.run(2, jobs.sum_into, Op.MAX)] == [True, True]


def test_averages_written_over_the_tensors_have_the_same_bits_and_a_bad_step_is_nan(pool):
    assert pool.run(2, jobs.exchange_in_place) == [(True, True, True)] * 2


def test_a_rank_that_ends_in_the_middle_of_its_tensor_is_named(pool):
    text = pool.run(2, jobs.lose_sender)[0]
    assert text.startswith("step 5: rank 1 closed the connection") and "AllReduce(sum) of 1000000 float32" in text


@pytest.mark.parametrize(("is_detached", "num_bytes"), ((False, 12), (True, 0)))
def test_another_length_than_that_of_the_request_is_an_error(pool, is_detached, num_bytes):
    text = pool.run(2, jobs.announce_other_length, is_detached)[0]
    assert text.startswith(f"step 5: rank 1 sent {num_bytes} B for AllReduce") and "expected 4000000 B" in text


def test_an_output_of_another_form_is_refused():
    with pytest.raises(ValueError, match=r"out must be \(3,\) torch.float32 as the tensor, got \(4,\)"):
        AllReduce(torch.zeros(3), out=torch.zeros(4))


def test_merged_requests_have_no_output():
    outs = [torch.full((2,), 7.0), torch.full((2,), 7.0)]

    def program(out):
        return (yield AllReduce(torch.ones(2), out=out))

    results = lockstep([fuse([program(out) for out in outs]) for _ in range(2)])
    assert all(torch.equal(value, torch.full((2,), 2.0)) for values in results for value in values)
