"""Checkpoints that several ranks write together."""

import pytest

from helpers.checkpoints import flip, on_ranks, same, save_together, state_of
from thinwire import CheckpointError, checkpoint


def test_ranks_write_one_checkpoint_and_read_each_its_own(tmp_path):
    for step in (1, 2, 3):
        assert len(set(save_together(tmp_path, 3, step))) == 1
    assert checkpoint.steps(tmp_path) == [2, 3]
    for rank in range(3):
        assert same(state_of(rank, 3), checkpoint.load(tmp_path, rank=rank, world_size=3))
        assert same(state_of(rank, 3), checkpoint.load(tmp_path, rank=rank, world_size=None))
    with pytest.raises(CheckpointError, match="'world_size' is 3, this is rank 0 of 1"):
        checkpoint.load(tmp_path)
    with pytest.raises(CheckpointError, match="'world_size' is 3, this is rank 3 of 4"):
        checkpoint.load(tmp_path, rank=3, world_size=4)


@pytest.mark.parametrize("unlucky", [0, 1, 2])
def test_an_error_on_one_rank_is_an_error_on_all_and_the_old_checkpoint_stays(tmp_path, unlucky):
    save_together(tmp_path, 3)
    outcome = save_together(
        tmp_path, 3, 2, lambda rank, step: {"x": print} if rank == unlucky else state_of(rank, step)
    )
    assert all(isinstance(error, CheckpointError) for error in outcome), outcome
    assert "'x' is a builtin" in str(outcome[unlucky])
    assert [path.name for path in tmp_path.iterdir()] == ["save-000001-step-00000001"]
    assert same(state_of(1), checkpoint.load(tmp_path, rank=1, world_size=3))


def test_ranks_at_different_steps_do_not_make_one_checkpoint(tmp_path):
    def save(rank, barrier):
        return checkpoint.save(tmp_path, {}, step=rank, rank=rank, world_size=2, barrier=barrier)

    outcome = on_ranks(2, save)
    assert "must pass the same step" in str(outcome[0]) and isinstance(outcome[1], CheckpointError)
    assert checkpoint.steps(tmp_path) == []


def test_ranks_fall_back_together_whichever_file_is_damaged(tmp_path):
    for step in (1, 2):
        (where, *_) = save_together(tmp_path, 3, step)
    flip(where / "rank-00002.safetensors", -1)
    for rank in range(3):
        assert same(state_of(rank, 1), checkpoint.load(tmp_path, fallback=True, rank=rank, world_size=3))
