"""Checkpoints come back bit for bit, or as an error; a crash, a full disk or a damaged file costs one at most."""

import errno
import json
import logging
import os
import random
import resource
import shutil
import subprocess
import sys
import textwrap
import threading
import tracemalloc
from hashlib import sha256
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from safetensors.torch import load_file

from helpers.cases import DTYPES, KINDS, SHAPES, draw
from thinwire import CheckpointError, Exchanger, TensorSpec, World, checkpoint, lockstep, parse
from thinwire.checkpoint import files
from thinwire.checkpoint.files import CODES, to_json
from thinwire.checkpoint.manifest import MANIFEST


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    """Most tests ask what a file says, not whether it would survive a power cut; a busy disk makes them wait."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def same(a, b):
    """Equal in structure, types of numbers and keys, order and bits."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and (a.dtype, a.shape) == (b.dtype, b.shape) and bits(a) == bits(b)
    if isinstance(a, dict):
        return type(b) is dict and [*map(typed, a)] == [*map(typed, b)] and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and repr(a) == repr(b)


def typed(key):
    return type(key), key


def bits(tensor):
    return bytes(tensor.detach().reshape(-1).contiguous().view(torch.uint8).tolist()) if tensor.numel() else b""


# ---- what comes back


TENSORS = st.builds(
    lambda kind, shape, dtype, seed, form: FORMS[form](draw(kind, shape, seed=seed).to(dtype)),
    st.sampled_from(KINDS),
    st.sampled_from(SHAPES),
    st.sampled_from([*DTYPES, torch.int64, torch.uint8, torch.bool]),
    st.integers(0, 5),
    st.sampled_from(["plain", "transposed", "expanded", "part"]),
)
FORMS = {
    "plain": lambda t: t,
    "transposed": lambda t: t.t() if t.ndim == 2 else t,
    "expanded": lambda t: t.expand(3, *t.shape),
    "part": lambda t: t[1::2] if t.ndim else t,
}
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | TENSORS
KEYS = st.text(max_size=5) | st.sampled_from(["a", "a.b", "__metadata__", "tensor", "dict", "\ud800"]) | st.integers()
STATES = st.dictionaries(
    KEYS,
    st.recursive(
        LEAVES,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(KEYS, inner, max_size=3)
        ),
        max_leaves=8,
    ),
    max_size=4,
)


@given(state=STATES)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_state_comes_back_bit_for_bit(tmp_path, state):
    checkpoint.save(tmp_path, state, keep=1)
    assert same(state, checkpoint.load(tmp_path))


@pytest.mark.parametrize("dtype", CODES, ids=str)
def test_every_type_comes_back_with_all_its_bits(tmp_path, dtype):
    numbers = torch.arange(256, dtype=torch.uint8).repeat(8)  # NaNs with payloads, subnormals, negative zeros
    stored = (numbers % 2).bool() if dtype == torch.bool else numbers.view(dtype)
    checkpoint.save(tmp_path, {"x": stored, "scalar": stored[0], "none": stored[:0]})
    assert same({"x": stored, "scalar": stored[0], "none": stored[:0]}, checkpoint.load(tmp_path))


def test_views_of_one_memory_are_stored_once_if_equal_and_apart_if_not(tmp_path):
    weight = torch.randn(100, 100)
    state = {"tied": weight, "head": weight.view(100, 100), "flat": weight.view(-1), "row": weight[3], "t": weight.t()}
    where = checkpoint.save(tmp_path, state)
    loaded = checkpoint.load(tmp_path)
    assert same(state, loaded)
    assert loaded["tied"] is loaded["head"]
    assert same(state["flat"], load_file(where / "rank-00000.safetensors")["flat"]), "any reader of safetensors does"
    assert (where / "rank-00000.safetensors").stat().st_size < 3.1 * 40_000
    loaded["flat"].zero_()
    assert same(loaded["t"], weight.t()), "what was copied has a memory of its own"


def test_a_state_with_tensors_of_one_name_keeps_them_apart(tmp_path):
    state = {
        "a.b": torch.ones(1),
        "a": {"b": torch.zeros(1)},
        "a.b#2": torch.full((1,), 2.0),
        "__metadata__": torch.ones(2),
    }
    checkpoint.save(tmp_path, state)
    assert same(state, checkpoint.load(tmp_path))


def test_what_was_loaded_does_not_lean_on_the_file(tmp_path):
    where = checkpoint.save(tmp_path, {"x": torch.ones(1000), "y": torch.ones(1000)})
    loaded = checkpoint.load(tmp_path)
    with (where / "rank-00000.safetensors").open("r+b") as file:
        file.write(bytes(9000))
    assert same(loaded, {"x": torch.ones(1000), "y": torch.ones(1000)})
    assert loaded["x"].untyped_storage().nbytes() == 4000


def test_a_tensor_that_changes_while_it_is_saved_cannot_break_its_checksum():
    tensor = torch.ones(1000)
    (chunk,) = files._chunks(tensor)
    tensor.zero_()
    assert chunk == bits(torch.ones(1000))


def holding_itself():
    state = {}
    state["again"] = state
    return state


UNFIT = [
    ("set", {"a": {"b": {1, 2}}}, "'a.b' is a set"),
    ("named tuple", {"a": World(0, 1)}, "'a' is a World"),
    ("key", {"a": {1.5: 0}}, "'a.1.5' is a key of type float"),
    ("long number", {"a": [1 << 5000]}, "'a.0' is a whole number of 5001 bits"),
    ("sparse", {"a": torch.eye(2).to_sparse()}, "'a' is a Tensor on cpu"),
    ("meta", {"a": torch.empty(2, device="meta")}, "'a' is a Tensor on meta"),
    ("complex", {"a": torch.zeros(2, dtype=torch.complex64)}, "'a' is a tensor of torch.complex64"),
    ("function", {"a": print}, "'a' is a builtin"),
    ("no dict", [1, 2], "must be a dict"),
    ("cycle", holding_itself(), "nested deeper"),
]


@pytest.mark.parametrize(("state", "text"), [case[1:] for case in UNFIT], ids=[case[0] for case in UNFIT])
def test_what_cannot_be_stored_is_named_and_the_old_checkpoint_stays(tmp_path, state, text):
    checkpoint.save(tmp_path, {"x": 1})
    with pytest.raises(CheckpointError, match=text):
        checkpoint.save(tmp_path, state)
    assert checkpoint.load(tmp_path) == {"x": 1}
    assert len(list(tmp_path.iterdir())) == 1


def test_numbers_beyond_what_load_would_read_are_refused_when_saving(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "JSON_LIMIT", 1000)
    with pytest.raises(CheckpointError, match="at most 1000; put long lists into tensors"):
        checkpoint.save(tmp_path, {"a": list(range(1000))})


@pytest.mark.parametrize(
    "setting",
    [{"keep": 0}, {"step": -1}, {"rank": 1}, {"rank": 2, "world_size": 2, "barrier": print}, {"world_size": 2}],
)
def test_settings_that_cannot_be_are_refused_at_once(tmp_path, setting):
    with pytest.raises(ValueError, match=r"checkpoint\.save"):
        checkpoint.save(tmp_path / "new", {}, **setting)
    assert not (tmp_path / "new").exists()


# ---- a run


class Run:
    """Two workers that train one model over an exchange with memory."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 3)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, betas=(0.8, 0.99))
        layers = [TensorSpec(name, tuple(p.shape)) for name, p in self.model.named_parameters()]
        self.exchangers = [Exchanger(layers, parse("ef(topk(density=0.1))"), seed=3) for _ in range(2)]
        self.step = 0

    def train(self, steps):
        losses = []
        for _ in range(steps):
            programs = [self.round(rank) for rank in range(2)]
            for name, gradient in lockstep(programs)[0].items():
                self.model.get_parameter(name).grad = gradient
            self.optimizer.step()
            losses.append(self.loss.item().hex())
            self.step += 1
        return losses

    def round(self, rank):
        generator = torch.Generator().manual_seed(1000 * self.step + rank)
        x = torch.randn(32, 8, generator=generator)
        self.model.zero_grad()
        self.loss = (self.model(x) - x[:, :3].abs()).square().mean()
        self.loss.backward()
        gradients = {name: p.grad.clone() for name, p in self.model.named_parameters()}
        return self.exchangers[rank].run_step(gradients, self.step, World(rank, 2))

    def state(self):
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "exchangers": [e.state_dict() for e in self.exchangers],
            "generator": torch.get_rng_state(),
            "step": self.step,
        }

    def restore(self, state):
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for exchanger, stored in zip(self.exchangers, state["exchangers"], strict=True):
            exchanger.load_state_dict(stored)
        self.step = state["step"]
        return self


def test_model_optimizer_and_exchange_resume_with_the_same_bits(tmp_path):
    run = Run()
    run.train(7)
    checkpoint.save(tmp_path, run.state(), step=run.step)
    loaded = checkpoint.load(tmp_path)
    assert same(plain(run.state()), loaded)
    assert list(loaded["optimizer"]["state"]) == [0, 1, 2, 3, 4, 5]
    after = run.train(7)
    other = Run()
    other.train(2)  # somewhere else altogether
    assert other.restore(loaded).train(7) == after
    assert same(plain(run.state()), plain(other.state()))


def plain(state):
    """The model's state is an OrderedDict, which comes back as a dict."""
    return state | {"model": dict(state["model"])}


# ---- which is kept, which is taken


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


def flip(path, position, bit=0):
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


# ---- several ranks


def on_ranks(size, work):
    """work(rank, barrier) on so many threads; what each returned or raised."""
    barrier, out = threading.Barrier(size, timeout=10), [None] * size

    def run(rank):
        try:
            out[rank] = work(rank, barrier.wait)
        except Exception as error:
            out[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return out


def state_of(rank, step=1):
    return {"residual": draw("gaussian", (5, 7), seed=10 * step + rank), "rank": rank, "step": step}


def save_together(folder, size, step=1, state=state_of):
    return on_ranks(
        size,
        lambda rank, barrier: checkpoint.save(
            folder, state(rank, step), step=step, rank=rank, world_size=size, barrier=barrier
        ),
    )


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


def test_ranks_fall_back_together_whosever_file_is_damaged(tmp_path):
    for step in (1, 2):
        (where, *_) = save_together(tmp_path, 3, step)
    flip(where / "rank-00002.safetensors", -1)
    for rank in range(3):
        assert same(state_of(rank, 1), checkpoint.load(tmp_path, fallback=True, rank=rank, world_size=3))


# ---- damage


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


# ---- crashes and full disks

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
