"""A shared importance is the same on all ranks, on real processes."""

from helpers.jobs import shared_importance


def test_real_ranks_end_with_the_same_w_to_the_last_bit(pool):
    found = pool.run(2, shared_importance, ordered=True)
    digests, losses, agreed, rows = zip(*found, strict=True)
    assert len(set(digests)) == len(set(losses)) == len(set(agreed)) == 1
    assert losses[0][-1] < losses[0][0]
    assert {where[-1] for where in rows[0]} >= {"importance", "values"}
