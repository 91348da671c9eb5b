"""A state is loaded bit for bit, or refused when it is saved."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from safetensors.torch import load_file

from helpers.cases import DTYPES, KINDS, SHAPES, draw
from helpers.checkpoints import bits, same
from thinwire import CheckpointError, World, checkpoint
from thinwire.checkpoint import files
from thinwire.checkpoint.files import CODES

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
