"""A step that fails commits nothing; what was closed says so at once. Each on two real processes."""

import pytest

from helpers import failure_jobs as jobs


@pytest.mark.parametrize("when", ("before", "after"))
def test_a_step_in_which_one_bucket_fails_commits_nothing_and_is_not_counted(pool, when):
    for raised, kept, untouched in pool.run(2, jobs.fail_one_bucket, when):
        assert raised == "this layer fails"
        assert kept and untouched


def test_a_state_that_is_saved_after_a_broken_backward_pass_has_nothing_of_that_step(pool):
    assert pool.run(2, jobs.interrupt_backward) == [True, True]


@pytest.mark.parametrize("kind", ("attach", "local", "moments", "alone", "torch_dist"))
def test_a_handle_or_driver_that_is_used_after_its_end_raises_at_once(pool, kind):
    for failures in pool.run(2, jobs.use_after_end, kind):
        for method, (error, seconds) in failures.items():
            assert error == "ClosedError", method
            assert seconds < 1
