"""A damaged checkpoint is a CheckpointError, or the checkpoint before it is loaded."""

import errno
import json
import logging
import os
import random
import shutil

import pytest
import torch

from helpers.checkpoints import flip, same, save_together, state_of
from thinwire import CheckpointError, checkpoint
from thinwire.checkpoint.manifest import MANIFEST


def test_a_damaged_checkpoint_falls_back_only_when_asked_to_and_says_so(tmp_path, caplog):
    for step in (1, 2, 3):
        where = checkpoint.save(tmp_path, {"x": torch.full((4,), float(step))}, step=step, keep=3)
    flip(where / "rank-00000.safetensors", -1)
    with pytest.raises(CheckpointError, match=r"save-000003-step-00000003/rank-00000.safetensors: field 'sha256'"):
        checkpoint.load(tmp_path)
    with caplog.at_level(logging.WARNING, "thinwire"):
        assert checkpoint.load(tmp_path, fallback=True)["x"].tolist() == [2.0] * 4
    assert "falling back" in caplog.text and "save-000003" in caplog.text
    for path in tmp_path.glob("*/manifest.json"):
        path.unlink()
    with pytest.raises(CheckpointError, match="all checkpoints are damaged") as caught:
        checkpoint.load(tmp_path, fallback=True)
    assert caught.value.errno == errno.ENOENT


def mutated(folder, chance):
    """One random injury to a checkpoint of two ranks, or to its neighbour's place; says what it did."""
    older, newest = sorted(folder.iterdir())
    path = chance.choice(sorted(newest.iterdir()))
    kind = chance.choice(
        ["flip", "flip", "flip", "truncate", "longer", "missing", "swap", "stale", "edit", "rename", "fill"]
    )
    if kind == "flip":
        flip(path, chance.randrange(path.stat().st_size), chance.randrange(8))
    elif kind == "truncate":
        os.truncate(path, chance.randrange(path.stat().st_size))
    elif kind == "longer":
        path.write_bytes(path.read_bytes() + bytes(chance.randrange(1, 100)))
    elif kind == "missing":
        path.unlink()
    elif kind == "swap":
        other = chance.choice([p for p in newest.iterdir() if p != path])
        content = path.read_bytes()
        path.write_bytes(other.read_bytes())
        other.write_bytes(content)
    elif kind == "stale":
        path.write_bytes((older / path.name).read_bytes())
    elif kind == "edit":
        path = newest / MANIFEST
        text = path.read_text()
        digits = [i for i, c in enumerate(text) if c in "0123456789abcdef"]
        place = chance.choice(digits)
        path.write_text(
            text[:place] + chance.choice([c for c in "0123456789abcdef" if c != text[place]]) + text[place + 1 :]
        )
    elif kind == "rename":
        shutil.rmtree(newest)
        older.rename(newest)
    else:
        start = chance.randrange(path.stat().st_size)
        data = path.read_bytes()
        path.write_bytes(data[:start] + bytes(255 - b for b in data[start : start + 64]) + data[start + 64 :])
    return f"{kind} {path.name}"


def heal(sound):
    for path, data in sound.items():
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_bytes() != data:
            path.write_bytes(data)


def test_of_a_thousand_injuries_none_goes_unnoticed_and_none_is_another_error(tmp_path):
    for step in (1, 2):
        save_together(tmp_path, 2, step)
    sound = {path: path.read_bytes() for path in tmp_path.glob("*/*")}
    expected = [state_of(rank, 2) for rank in range(2)]
    kinds = {}
    for seed in range(1000):
        injury = mutated(tmp_path, random.Random(seed))
        kinds[injury.split()[0]] = kinds.get(injury.split()[0], 0) + 1
        noticed = 0
        for rank in range(2):
            try:
                loaded = checkpoint.load(tmp_path, rank=rank, world_size=2)
            except CheckpointError as error:
                assert str(tmp_path) in str(error)
                noticed += 1
            else:
                assert same(loaded, expected[rank]), (seed, injury)
        assert noticed, (seed, injury)
        heal(sound)
    assert len(kinds) == 9 and min(kinds.values()) > 30, kinds


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[" * 100_000,
        b"1" * 10_000,
        b'{"format":NaN}\n',
        b"\xff\xfe",
        b'{"format":1,"format":1}\n',
        b" " * (17 << 20),
    ],
)
def test_a_manifest_that_is_no_json_of_ours_is_an_error_with_its_name(tmp_path, data):
    (checkpoint.save(tmp_path, {}) / MANIFEST).write_bytes(data)
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        checkpoint.load(tmp_path)


def test_a_manifest_that_says_the_same_in_another_way_was_edited(tmp_path):
    path = checkpoint.save(tmp_path, {}) / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_bytes()), indent=1))
    with pytest.raises(CheckpointError, match=r"manifest\.json: edited or damaged"):
        checkpoint.load(tmp_path)
