import random

import pytest

from thinwire import World
from thinwire.planner.link import (
    FAST_MBIT_S,
    THIN_MBIT_S,
    compute_ring_rates,
    describe_link,
    make_ring_message,
    measure_link,
)


@pytest.mark.parametrize("size", (2, 3, 7))
def test_a_link_is_as_fast_as_the_quicker_of_its_ends(size):
    draw = random.Random(size)
    seconds = [draw.uniform(0.1, 2.0) for _ in range(size)]
    rates = compute_ring_rates(seconds, 1_000_000)
    assert [(rate.source, rate.to) for rate in rates] == [(r, (r + 1) % size) for r in range(size)]
    for rate in rates:
        assert rate.mbit_s == pytest.approx(max(8 / seconds[rate.source], 8 / seconds[rate.to]))


def test_one_slow_link_leaves_the_others_their_rates():
    rates = compute_ring_rates([1.0, 1.0, 0.1, 0.1, 0.1], 1_000_000)  # ranks 0 and 1 wait for the link between them
    assert [round(rate.mbit_s) for rate in rates] == [8, 80, 80, 80, 80]


def test_each_rank_sends_to_the_next_alone():
    for rank in range(4):
        sizes = [payload.num_bytes for payload in make_ring_message(World(rank, 4), 100).payloads]
        assert sizes == [100 if to == (rank + 1) % 4 else 0 for to in range(4)]


def test_advice_names_the_rate_and_the_threshold():
    assert (
        "thin: compress" in describe_link(95.0)
        and "95 Mbit/s" in describe_link(95.0)
        and "1,000" in describe_link(95.0)
    )
    assert "dense is likely as good" in describe_link(8000.0) and "5,000" in describe_link(8000.0)
    assert "neither" in describe_link((THIN_MBIT_S + FAST_MBIT_S) / 2)


@pytest.mark.parametrize("size", (2, 3))
def test_all_ranks_of_a_group_have_the_same_figures(pool, size):
    figures = pool.run(size, measure_link, 5)
    assert all(each == figures[0] for each in figures)
    assert figures[0].ranks == len(figures[0].rates) == size
    assert figures[0].latency_us > 0 and figures[0].slowest_mbit_s > 0


def test_one_rank_has_no_link(pool):
    assert pool.run(1, measure_link) == [None]
