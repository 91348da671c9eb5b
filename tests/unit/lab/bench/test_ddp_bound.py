"""The modelled bound of a DDP step: what of the transfers the backward pass hides, and what passes over memory take."""

import pytest

from thinwire_lab.bench.ddp import add_bounds
from thinwire_lab.bench.ddp_bound import BucketTraffic, LoadFigures, compute_bound, compute_exposed_s, summarize_load
from thinwire_lab.bench.ddp_methods import DDPMethod
from thinwire_lab.bench.ddp_summary import DDPRow, Estimate

LOAD = LoadFigures(copy_s=0.01, latency_s=0.001, leads=((100, 0.2), (600, 0.1), (1000, 0.0)))
BUCKETS = [BucketTraffic(100, 1e3), BucketTraffic(500, 5e3), BucketTraffic(400, 4e3)]


def test_of_transfers_that_the_backward_pass_hides_only_the_last_bucket_is_exposed():
    assert compute_exposed_s(BUCKETS, LOAD, 1e6) == pytest.approx(0.001 + 4e-3)


def test_transfers_longer_than_the_backward_pass_are_exposed_from_the_bucket_that_fills_the_link():
    early = [BucketTraffic(100, 9e3), BucketTraffic(500, 500.0), BucketTraffic(400, 500.0)]
    assert compute_exposed_s(early, LOAD, 2e4) == pytest.approx(0.001 + 10e3 / 2e4 - 0.2)  # all, from the first on
    assert compute_exposed_s(BUCKETS, LOAD, 7e4) == pytest.approx(0.001 + 4e3 / 7e4)
    late = [BucketTraffic(100, 0.0), BucketTraffic(500, 9e3), BucketTraffic(400, 1e3)]
    assert compute_exposed_s(late, LOAD, 5e4) == pytest.approx(0.001 + 10e3 / 5e4 - 0.1)


def test_leads_of_smaller_buckets_lie_between_those_of_the_floor():
    buckets = [BucketTraffic(350, 1e4), BucketTraffic(650, 0.0)]
    assert compute_exposed_s(buckets, LOAD, 5e4) == pytest.approx(0.001 + 0.2 - 0.15)


def test_without_a_rate_only_the_latency_is_exposed():
    assert compute_exposed_s(BUCKETS, LOAD, None) == 0.001


def test_a_bound_is_floor_passes_and_exposed_transfer_with_the_bytes_of_the_interface():
    bound = compute_bound(0.5, 2.0, BUCKETS, 2e4, LOAD, 1e6)  # twice the bytes that the meter counted
    assert (bound.passes_ms, bound.exposed_ms) == (pytest.approx(20), pytest.approx(1 + 8))
    assert bound.step_ms == pytest.approx(529) and bound.floors == pytest.approx(1.058)


def test_load_is_that_of_the_slower_rank_and_leads_are_means():
    ranks = [
        {"load": [[0.01, 0.002], [0.03, 0.002]], "leads": [[[10, 0.4], [30, 0.0]], [[10, 0.2], [30, 0.0]]]},
        {"load": [[0.02, 0.001], [0.02, 0.004]], "leads": [[[10, 0.1], [30, 0.0]], [[10, 0.1], [30, 0.0]]]},
    ]
    load = summarize_load(ranks)
    assert (load.copy_s, load.latency_s) == (pytest.approx(0.025), pytest.approx(0.003))
    assert load.leads == ((10, pytest.approx(0.2)), (30, 0.0))


def test_bounds_are_given_to_methods_with_copies_only():
    methods = [DDPMethod("floor", "nothing"), DDPMethod("thinwire a", "a", copies=2.0), DDPMethod("thinwire b", "b")]
    figures = Estimate(100, 100, 100), Estimate(1, 1, 1)
    rows = [DDPRow(method.label, *figures, 0.001, 50) for method in methods]
    rank = {"load": [[0.01, 0.0]], "leads": [[[1000, 0.0]]], "buckets": {"thinwire a": [[1000, 5.0]]}}
    floor, a, b = add_bounds(methods, rows, [rank, rank], "100mbit")
    assert floor.bound is None and b.bound is None
    assert a.bound.step_ms == pytest.approx(100 + 20 + 1e3 * 1000 / 12.5e6)  # 0.001 MB at 12.5 MB/s
