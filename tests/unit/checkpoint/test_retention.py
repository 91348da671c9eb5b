"""Which checkpoints are kept, and which one is loaded."""

import errno
import os
import shutil

import pytest

from thinwire import CheckpointError, checkpoint


def test_the_newest_are_kept_and_steps_are_listed_in_the_order_of_saving(tmp_path):
    assert checkpoint.steps(tmp_path / "nowhere") == []
    for step in (100, 200, 300, 150):  # the run went back to a checkpoint of step 100
        checkpoint.save(tmp_path, {"step": step}, step=step, keep=3)
    assert checkpoint.steps(tmp_path) == [200, 300, 150]
    assert checkpoint.load(tmp_path) == {"step": 150}
    assert checkpoint.load(tmp_path, step=300) == {"step": 300}
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 100; there are \[200, 300, 150\]"):
        checkpoint.load(tmp_path, step=100)
    with pytest.raises(CheckpointError, match="nowhere: no checkpoint"):
        checkpoint.load(tmp_path / "nowhere")


def test_a_step_saved_twice_is_the_second(tmp_path):
    for word in ("first", "second"):
        checkpoint.save(tmp_path, {"word": word}, step=7)
    assert checkpoint.load(tmp_path, step=7) == {"word": "second"}


def test_saves_without_a_step_are_counted(tmp_path):
    for _ in range(3):
        checkpoint.save(tmp_path, {})
    assert checkpoint.steps(tmp_path) == [2, 3]


def test_an_old_checkpoint_that_cannot_be_deleted_stops_nothing(tmp_path, monkeypatch, caplog):
    def refuse(path):
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(path))

    checkpoint.save(tmp_path, {"x": 1}, keep=1)
    monkeypatch.setattr(shutil, "rmtree", refuse)
    checkpoint.save(tmp_path, {"x": 2}, keep=1)
    assert "could not delete an old checkpoint" in caplog.text
    monkeypatch.undo()
    checkpoint.save(tmp_path, {"x": 3}, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["save-000003-step-00000003"]
