import time

import pytest

from helpers import jobs
from helpers.pool import RankFailed


@pytest.mark.parametrize("ordered", (False, True))
@pytest.mark.parametrize("size", (2, 3, 4))
def test_every_request_is_answered_as_it_says(pool, size, ordered):
    assert pool.run(size, jobs.all_requests, ordered=ordered) == [True] * size


def test_queued_programs_keep_their_order(pool):
    assert pool.run(2, jobs.submit_many) == [[2.0 * i for i in range(50)]] * 2


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("collective", "rank 1 requests AllGather of (float32)"),
        ("size", "rank 1 requests AllReduce(sum) of 5 float32"),
        ("type", "rank 1 requests AllReduce(sum) of 4 float64"),
        ("step", "(step 9)"),
    ],
)
def test_a_disagreement_is_an_error_on_every_rank_that_names_ranks_and_requests(pool, kind, words):
    started = time.monotonic()
    with pytest.raises(RankFailed) as caught:
        pool.run(3, jobs.disagree, kind)
    assert time.monotonic() - started < 15
    for name, text in caught.value.errors:
        assert name == "ProtocolError"
        assert words in text and "ranks 0, 2 request AllReduce(sum) of 4 float32, 16 B" in text


def test_neighbors_that_disagree_raise_and_name_one_another(pool):
    with pytest.raises(RankFailed) as caught:
        pool.run(2, jobs.disagree, "swap")
    (first, text), (second, _) = caught.value.errors
    assert first == second == "ProtocolError"
    assert (
        "step 5: ranks disagree: rank 0 requests NeighborExchange of (float32), rank 1 requests something else" in text
    )


def test_other_compositions_on_other_ranks_are_found_at_the_first_step(pool):
    with pytest.raises(RankFailed) as caught:
        pool.run(2, jobs.quarrel_under_an_exchanger)
    assert all(name == "ProtocolError" and "step 5" in text for name, text in caught.value.errors)


def test_a_rank_that_does_not_come_is_named_after_the_timeout(pool):
    started = time.monotonic()
    with pytest.raises(RankFailed) as caught:
        pool.run(2, jobs.stay_away, timeout_s=2.0)
    assert time.monotonic() - started < 20
    name, text = caught.value.errors[0]
    assert name == "PeerLostError" and "rank 1" in text and "AllReduce" in text


def test_a_dropped_driver_is_freed_without_the_garbage_collector(pool):
    assert pool.run(2, jobs.drop_driver) == [True] * 2
