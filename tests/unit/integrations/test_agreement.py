"""Ranks that do not mean the same find out, all of them, before the first step."""

import pytest

from helpers import ddp_mismatches as jobs

TOLD = {
    **{kind: told for kind, (_, _, told) in jobs.COMPOSITIONS.items()},
    **{kind: f"setting: {kind}" for kind in jobs.SETTINGS},
    "bucket_cap_mb": "DDP: bucket_bytes_cap",
    "find_unused_parameters": "DDP: find_unused_parameters",
    "static_graph": "DDP: static_graph",
    "names": "deuxieme",
    "order": "parameters in order",
    "dtype": "torch.float64",
    "version": "0.0.1",
    "change": "ternary()",
    "stored step": "stored: step",
    "stored world": "stored: world_size",
}


@pytest.mark.parametrize("kind", jobs.KINDS)
def test_ranks_that_disagree_find_out_before_the_first_step(pool, kind):
    for name, text, seconds in pool.run(3, jobs.quarrel, kind):
        assert name == "ConfigMismatch"
        assert "on ranks 0, 1" in text and "on rank 2" in text and TOLD[kind] in text
        assert seconds < 50  # 0.1 to 0.3 s on an idle machine; in any case no timeout played a part


def test_there_are_more_than_25_kinds_of_disagreement():
    assert len(jobs.KINDS) >= 25


def test_what_one_rank_alone_does_between_steps_is_an_error_of_all(pool):
    for name, text in pool.run(2, jobs.pause_alone):
        assert name == "ProtocolError" and "rank 0 requests" in text and "rank 1 requests" in text
    pool.close()  # DDP wants no more of these models
