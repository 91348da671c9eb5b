"""A kill, a full disk or a failing system call costs one checkpoint at most."""

import errno
import os
import resource
import subprocess
import sys
import textwrap

import pytest
import torch

from helpers.checkpoints import same, save_together, state_of
from thinwire import CheckpointError, checkpoint

KILLS = """
import os, random, signal, sys, time
from pathlib import Path
unpickled = []
sys.addaudithook(lambda event, _: unpickled.append(event) if event == "pickle.find_class" else None)
import torch
from thinwire import checkpoint
torch.set_num_threads(1)
folder, chance, halves, saves = Path(sys.argv[1]), random.Random(5), 0, 0

def save_for_ever(step, done):
    while True:
        step += 1
        checkpoint.save(folder, {"step": step, "tensors": [torch.full((250_000,), step) for _ in range(4)]}, step=step)
        os.write(done, step.to_bytes(8, "little"))

unpickled.clear()  # torch's own imports are no business of ours
started, step = time.monotonic(), 0
checkpoint.save(folder, {"step": 0, "tensors": [torch.zeros(250_000) for _ in range(4)]}, step=0)
usual = time.monotonic() - started  # disks differ
for _ in range(int(sys.argv[2])):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        save_for_ever(step, writing)
    os.close(writing)
    time.sleep(chance.uniform(0, 4 * usual))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    told = b""
    while data := os.read(reading, 1 << 16):
        told += data
    os.close(reading)
    done = int.from_bytes(told[-8:], "little") if told else step
    halves += (folder / ".saving").exists()
    saves += len(told) // 8
    state = checkpoint.load(folder)
    assert state["step"] in (done, done + 1), (state["step"], done)
    assert all((t == state["step"]).all() for t in state["tensors"])
    step = state["step"]
assert not unpickled
assert len(list(folder.iterdir())) <= 4
print(halves, saves)
"""


def test_a_kill_at_any_moment_leaves_the_last_checkpoint_or_the_one_before(tmp_path):
    out = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLS), tmp_path, "15"],
        check=True,
        timeout=90,
        capture_output=True,
        text=True,
    )
    halves, saves = map(int, out.stdout.split())
    assert halves >= 3, "the kills must have hit some saves in the middle"
    assert saves >= 1, "and some saves must have come through"


def test_nothing_of_a_crashed_attempt_gets_into_the_next(tmp_path):
    (where, *_) = save_together(tmp_path, 2)
    where.rename(tmp_path / ".saving")
    outcome = save_together(tmp_path, 2, 1, lambda rank, step: {"x": print} if rank == 1 else state_of(rank, step))
    assert all(isinstance(error, CheckpointError) for error in outcome), "the part of rank 1 was an old one"
    assert "rank 1 of 2 has not written it" in str(outcome[0])


@pytest.fixture
def tiny_disk(tmp_path):
    """A real file system of two megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("needs root to mount a tiny file system; a limit on file sizes is the twin of this test")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_a_full_or_read_only_disk_is_an_error_with_errno_and_file_and_the_old_checkpoint_loads(tiny_disk):
    small, large = {"x": torch.ones(100_000)}, {"x": torch.ones(600_000)}
    checkpoint.save(tiny_disk, small)
    with pytest.raises(CheckpointError, match=r"\.saving/rank-00000\.safetensors.*ENOSPC") as caught:
        checkpoint.save(tiny_disk, large)
    assert caught.value.errno == errno.ENOSPC
    assert same(checkpoint.load(tiny_disk), small)
    checkpoint.save(tiny_disk, small)  # what was half written is gone, so there is room again
    subprocess.run(["mount", "-o", "remount,ro", tiny_disk], check=True)
    with pytest.raises(CheckpointError, match=r"\.saving.*EROFS") as caught:
        checkpoint.save(tiny_disk, small)
    assert caught.value.errno == errno.EROFS
    assert same(checkpoint.load(tiny_disk), small)


def test_a_file_that_may_not_grow_is_an_error_with_errno_and_file_and_the_old_checkpoint_loads(tmp_path):
    small, large = {"x": torch.ones(100)}, {"x": torch.ones(600_000)}
    checkpoint.save(tmp_path, small)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(CheckpointError, match=r"\.saving/rank-00000\.safetensors.*EFBIG") as caught:
            checkpoint.save(tmp_path, large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.errno == errno.EFBIG
    assert same(checkpoint.load(tmp_path), small)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_an_error_of_any_system_call_of_a_save_leaves_the_old_checkpoint(tmp_path, monkeypatch, code):
    """fsync is called for each file and folder, before and after the rename: let each of them fail in turn."""
    calls, failing = [], -1

    def fsync(handle):
        calls.append(handle)
        if len(calls) == failing:
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fsync)
    checkpoint.save(tmp_path, {"x": -1})
    count = len(calls)
    assert count == 5
    good = -1
    for failing in range(1, count + 1):
        calls.clear()
        with pytest.raises(CheckpointError) as caught:
            checkpoint.save(tmp_path, {"x": failing})
        assert caught.value.errno == code and str(tmp_path) in str(caught.value)
        renamed = failing == count
        assert checkpoint.load(tmp_path) == {"x": failing if renamed else good}
