"""Parameters that want gradients though DDP does not reduce them are compared, too, and named."""

from helpers import report_jobs as jobs


def test_what_was_unfrozen_later_stops_the_job_by_name(pool):
    for kind, text, before, warned in pool.run(2, jobs.unfreeze, "stop"):
        assert kind == "DivergedError" and not before
        assert "DDP does not reduce second.weight, second.bias" in text and "wrap the model in DDP again" in text
        assert len(warned) == 1 and "second.weight, second.bias" in warned[0]


def test_what_was_unfrozen_later_is_healed_if_asked(pool):
    results = pool.run(2, jobs.unfreeze, "resync")
    assert results[0][0] == results[1][0] >= 2
    assert all(len(warned) == 1 for *_, warned in results)


def test_ranks_that_unfreeze_differently_are_told(pool):
    for kind, text, *_ in pool.run(2, jobs.unfreeze, "stop", False):
        assert (
            kind == "DivergedError"
            and "different numbers of parameters that require gradients: 8 on rank 0, 6 on rank 1" in text
        )


def test_what_ddp_was_told_to_ignore_may_differ_with_one_warning(pool):
    for warned in pool.run(2, jobs.ignore):
        assert len(warned) == 1 and "second.weight, second.bias differ between ranks" in warned[0]
        assert "told to ignore" in warned[0]
