"""The embedded mushrooms data set, and the tool that made it."""

from __future__ import annotations

import hashlib
import importlib.util
import lzma
from pathlib import Path

import numpy as np
import pytest

from thinwire_lab.data import embedded
from thinwire_lab.data.mushrooms import load_mushrooms, mushrooms_text

TOOL = Path(__file__).parents[4] / "tools" / "make_mushrooms.py"


@pytest.fixture(scope="module")
def data():
    return load_mushrooms()


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("make_mushrooms", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_8124_rows_of_112_columns(data):
    features, labels = data
    assert features.shape == (8124, 112)
    assert features.dtype == np.float64
    assert labels.shape == (8124,)
    assert labels.dtype == np.int64


def test_every_row_has_21_ones_and_zeros_otherwise(data):
    features, _ = data
    assert set(np.unique(features)) == {0.0, 1.0}
    assert (features.sum(axis=1) == 21).all()


def test_3916_are_poisonous_and_4208_edible(data):
    _, labels = data
    assert dict(zip(*np.unique(labels, return_counts=True), strict=True)) == {1: 3916, 2: 4208}


def test_the_first_row_is_the_known_one(data):
    features, labels = data
    ones = [6, 8, 15, 21, 29, 33, 34, 37, 42, 50, 53, 57, 67, 76, 78, 81, 84, 86, 93, 103, 111]
    assert labels[0] == 1
    assert (np.flatnonzero(features[0]) + 1).tolist() == ones


def test_the_text_has_the_published_hash():
    digest = hashlib.sha256(mushrooms_text().encode()).hexdigest()
    assert digest == "f39a4eb628dc61a7d43760815b061c9e497aa728ce1ad8bde57a09ef6043b538"


def test_two_loads_do_not_share_memory(data):
    features, labels = load_mushrooms()
    assert not np.shares_memory(features, data[0])
    assert not np.shares_memory(labels, data[1])


@pytest.mark.parametrize(
    ("attribute", "value", "column", "rows"),
    [
        ("cap-shape", "conical", 1, 4),
        ("cap-color", "brown", 15, 2284),
        ("bruises?", "no", 22, 4748),
        ("odor", "foul", 25, 2160),
        ("odor", "anise", 27, 400),
        ("gill-color", "orange", 43, 64),
        ("stalk-surface-above-ring", "ibrous", 55, 552),
        ("stalk-color-below-ring", "brown", 74, 512),
        ("veil-type", "partial", 78, 8124),
        ("ring-type", "evanescent", 88, 2776),
        ("spore-print-color", "chocolate", 92, 1632),
        ("population", "several", 104, 4040),
        ("habitat", "waste", 112, 192),
    ],
)
def test_a_column_means_what_the_table_says(data, tool, attribute, value, column, rows):
    features, _ = data
    assert tool.column_indices()[attribute, value] == column
    assert features[:, column - 1].sum() == rows


def test_foul_mushrooms_are_all_poisonous(data, tool):
    features, labels = data
    foul = features[:, tool.column_indices()["odor", "foul"] - 1] == 1
    assert (labels[foul] == 1).all()


def test_the_table_writes_the_embedded_text_again(data, tool):
    features, labels = data
    pair_of = {index: pair for pair, index in tool.column_indices().items()}
    word_of = {label: word for word, label in tool.LABELS.items()}
    rows = [
        {"class": word_of[label]} | dict(pair_of[index + 1] for index in np.flatnonzero(row))
        for row, label in zip(features, labels.tolist(), strict=True)
    ]
    assert tool.check_text(tool.libsvm_text(rows)) == mushrooms_text().encode()


def test_the_tool_refuses_text_with_another_hash(tool):
    with pytest.raises(ValueError, match="nothing was written"):
        tool.check_text("1 1:1 \n")


def test_the_tool_names_a_value_it_does_not_know(tool):
    row = {attribute: values.split()[0] for attribute, values in tool.COLUMNS.items()} | {"class": "edible"}
    with pytest.raises(ValueError, match=r"row 2: .*'odor', 'vanilla'"):
        tool.libsvm_text([row, row | {"odor": "vanilla"}])


@pytest.mark.parametrize(
    ("packed", "said"), [(b"broken", "cannot be decompressed"), (lzma.compress(b"1 1:1 \n"), "sha256")]
)
def test_a_damaged_file_is_an_error(monkeypatch, tmp_path, packed, said):
    (tmp_path / "mushrooms.libsvm.xz").write_bytes(packed)
    monkeypatch.setattr(embedded, "files", lambda package: tmp_path)
    with pytest.raises(ValueError, match=said):
        load_mushrooms()
