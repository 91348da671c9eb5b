"""Checkpoints made to do harm, with checksums that fit, are refused before memory is spent."""

import json
import os
import resource
import tracemalloc
from hashlib import sha256
from pathlib import Path

import pytest
import torch

from helpers.checkpoints import same
from thinwire import CheckpointError, checkpoint
from thinwire.checkpoint.files import to_json
from thinwire.checkpoint.manifest import MANIFEST


def resealed(folder, edit):
    """Edit the manifest and one rank's JSON, then make all checksums fit again, as somebody hostile would."""
    (where,) = folder.iterdir()
    manifest, part = (json.loads((where / name).read_bytes()) for name in (MANIFEST, "rank-00000.json"))
    manifest, part = edit(manifest, part, where)
    if part is not None:
        (where / "rank-00000.json").write_bytes(to_json(part))
    for name in ("rank-00000.json", "rank-00000.safetensors") if isinstance(manifest, dict) else ():
        data = (where / name).read_bytes() if (where / name).is_file() else b""
        entry = manifest["files"].get(name) if isinstance(manifest.get("files"), dict) else None
        if isinstance(entry, dict) and "claimed" not in entry:
            manifest["files"][name] = {"sha256": sha256(data).hexdigest(), "num_bytes": len(data)}
    if isinstance(manifest, dict):
        manifest.pop("sha256", None)
        manifest["sha256"] = sha256(to_json(manifest)).hexdigest()
    (where / MANIFEST).write_bytes(to_json(manifest))


def with_manifest(**fields):
    return lambda manifest, part, where: (manifest | fields, part)


def with_tree(tree):
    return lambda manifest, part, where: (manifest, part | {"state": tree})


def with_tensors(header, data=b""):
    def edit(manifest, part, where):
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        (where / "rank-00000.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
        return manifest, part

    return edit


def with_claim(name, **claim):
    def edit(manifest, part, where):
        manifest["files"][name] |= claim | {"claimed": True}
        return manifest, part

    return edit


def with_file(name, replace):
    def edit(manifest, part, where):
        (where / name).unlink()
        replace(where / name)
        return manifest, None if name.endswith(".json") else part

    return edit


def outside(manifest, part, where):
    files = manifest["files"]
    files["../../outside.json"] = files.pop("rank-00000.json")
    return manifest, part


def nested(depth):
    tree = {"dict": {}}
    for _ in range(depth):
        tree = {"dict": {"a": tree}}
    return tree


HOSTILE = {
    "a list": lambda manifest, part, where: ([1, 2], part),
    "a number": lambda manifest, part, where: (7, part),
    "no fields": lambda manifest, part, where: ({"format": 1}, part),
    "format of the future": with_manifest(format=3),
    "format true": with_manifest(format=True),
    "format text": with_manifest(format="1"),
    "no ranks": with_manifest(world_size=0),
    "ranks below zero": with_manifest(world_size=-1),
    "a billion ranks": with_manifest(world_size=10**9),
    "ranks as text": with_manifest(world_size="1"),
    "step as float": with_manifest(step=1.0),
    "another step": with_manifest(step=2),
    "files as list": with_manifest(files=["rank-00000.json", "rank-00000.safetensors"]),
    "files of other things": with_manifest(files={"rank-00000.json": 1, "rank-00000.safetensors": 2}),
    "path traversal": outside,
    "absolute path": with_manifest(files={"/etc/passwd": {}, "rank-00000.json": {}}),
    "a claim of 2^62 bytes": with_claim("rank-00000.safetensors", num_bytes=2**62),
    "a claim below zero": with_claim("rank-00000.json", num_bytes=-1),
    "a claim of true bytes": with_claim("rank-00000.json", num_bytes=True),
    "a checksum of none": with_claim("rank-00000.json", sha256=None),
    "a link": with_file("rank-00000.json", lambda path: path.symlink_to("/dev/zero")),
    "a pipe": with_file("rank-00000.safetensors", os.mkfifo),
    "a folder": with_file("rank-00000.safetensors", Path.mkdir),
    "no state": lambda manifest, part, where: (manifest, {"tensors": part["tensors"]}),
    "state is a list": with_tree([1]),
    "state is a tuple": with_tree({"tuple": []}),
    "unknown tag": with_tree({"dict": {"x": {"object": "os.system"}}}),
    "two tags": with_tree({"dict": {}, "tuple": []}),
    "no tag": with_tree({"dict": {"x": {}}}),
    "tensor that is not there": with_tree({"dict": {"x": {"tensor": "y"}}}),
    "tensor of a list": with_tree({"dict": {"x": {"tensor": ["x"]}}}),
    "tensor nobody asks for": with_tree({"dict": {"x": 1}}),
    "items that are no pairs": with_tree({"items": [[1, 2, 3]]}),
    "items with a list as key": with_tree({"items": [[[1], 2]]}),
    "float of words": with_tree({"dict": {"x": {"float": "1e5"}}}),
    "deep": with_tree(nested(100)),
    "very deep": with_tree(nested(300)),
    "header of 2^60 bytes": lambda m, p, where: (
        (where / "rank-00000.safetensors").write_bytes(b"\xff" * 7 + b"\x0f{}"),
        (m, p),
    )[1],
    "header that is no JSON": with_tensors(b"{{{{"),
    "header with a list": with_tensors([1, 2]),
    "tensor of 2^40 numbers": with_tensors({"x": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}),
    "tensor whose size overflows": with_tensors({"x": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 0]}}),
    "empty tensor that is vast": with_tensors(
        {"x": {"dtype": "F32", "shape": [0, 2**63, 2**63], "data_offsets": [0, 0]}}
    ),
    "negative shape": with_tensors({"x": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, bytes(4)),
    "unknown type": with_tensors({"x": {"dtype": "OBJ", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
    "a type that torch lacks": with_tensors({"x": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}, bytes(1)),
    "overlapping tensors": with_tensors(
        {
            "x": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
            "y": {"dtype": "U8", "shape": [4], "data_offsets": [2, 6]},
        },
        bytes(6),
    ),
}


@pytest.mark.parametrize("edit", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_checkpoint_is_refused_before_memory_is_spent(tmp_path, edit):
    checkpoint.save(tmp_path, {"x": torch.ones(3)}, step=1)
    resealed(tmp_path, edit)
    (tmp_path / "save-000001-step-00000001.txt").write_text("not a checkpoint")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="save-000001"):
            checkpoint.load(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


def test_the_hostile_are_refused_for_what_they_did_and_not_for_how_we_sealed_them(tmp_path):
    checkpoint.save(tmp_path, {"x": torch.ones(3)}, step=1)
    resealed(tmp_path, with_tensors({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)))
    assert same(checkpoint.load(tmp_path), {"x": torch.zeros(1)})
