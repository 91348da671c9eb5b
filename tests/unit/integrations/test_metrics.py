"""`metrics()` of handles: the figures of an interval, which add up to those of the report."""

import math

import pytest

from helpers import report_jobs as jobs
from helpers.ddp_training import EF_TOPK

SUMS = ("steps", "sent_bytes", "received_bytes", "skipped_steps", "resynced_tensors")


def test_intervals_add_up_to_the_report_and_have_times_per_step(pool):
    for *intervals, report in pool.run(2, jobs.metrics_of, EF_TOPK, (3, 2, 0)):
        for name in SUMS:
            total = sum(each[f"thinwire/{name}"] for each in intervals)
            assert total == pytest.approx(getattr(report, name)), name
        assert [each["thinwire/steps"] for each in intervals] == [3, 2, 0]
        first, second, empty = intervals
        assert first["thinwire/saving"] > 1 and second["thinwire/saving"] > 1 and "thinwire/saving" not in empty
        for kind, name in (("encoding and decoding", "encode_ms"), ("sending", "send_ms"), ("waiting", "wait_ms")):
            spent = 3 * first[f"thinwire/{name}"] + 2 * second[f"thinwire/{name}"]
            assert spent == pytest.approx(1e3 * report.seconds[kind])
        assert all(type(value) is float and math.isfinite(value) for each in intervals for value in each.values())


def test_a_controller_adds_its_figures(pool):
    composition = "ef(adapt(topk(density=0.05), controller=lgreco(start=2, every=2, window=1)))"
    for found, _ in pool.run(2, jobs.metrics_of, composition, (5,)):
        assert found["thinwire/controller/decisions"] >= 1 and found["thinwire/controller/sent_bytes"] > 0
        assert found["thinwire/controller/ms"] > 0


def test_one_rank_sends_nothing_and_has_no_saving(pool):
    ((found, _),) = pool.run(1, jobs.metrics_of, EF_TOPK, (2,))
    assert found["thinwire/sent_bytes"] == 0 and "thinwire/saving" not in found


def test_local_training_has_metrics(pool):
    for found in pool.run(2, jobs.metrics_of_local):
        assert found["thinwire/steps"] == 4 and found["thinwire/sent_bytes"] > 0 and "thinwire/wait_ms" in found
