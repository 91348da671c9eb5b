import pytest

from thinwire_lab.bench.endurance import CAPS_MB, classify_failure, run_endurance


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("rank 1 of 2 failed:\nThread 0x7f (most recent call first): ...\nthis run hangs after 5 s", "hangs"),
        ("ranks [0, 1] of 2 did not finish in time", "hangs"),
        ("rank 0 of 2 failed:\nTraceback (most recent call last):\nRuntimeError: no", "errors"),
        ("rank 0 of 2 failed:\nterminate called after throwing an instance of 'gloo::EnforceNotMet'", "aborts"),
        ("rank 0 of 2 failed:\n", "aborts"),
    ],
)
def test_kinds_of_failures_are_read_from_the_log(text, kind):
    assert classify_failure(text) == kind


@pytest.mark.parametrize("buckets", (2, 64))
def test_models_have_as_many_buckets_as_wanted_and_come_to_their_end(buckets):
    row = run_endurance("ef(topk(density=0.01))", buckets, runs=1, steps=3, deadline_s=60.0)
    assert (row.buckets, row.good, row.failures, row.not_tried) == (buckets, 1, 0, 0), row.last_log


def test_a_run_beyond_its_deadline_hangs_and_is_ended():
    row = run_endurance("ef(topk(density=0.01))", max(CAPS_MB), runs=9, steps=100_000, deadline_s=1.0)
    assert (row.good, row.hangs, row.not_tried) == (0, 3, 6)
