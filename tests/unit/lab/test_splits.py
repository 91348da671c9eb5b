"""Splits: every example once, nobody without any, the same for the same seed."""

from __future__ import annotations

import numpy as np
import pytest

from thinwire.core import CompositionError
from thinwire_lab.tasks.splits import Split, split_rows, split_text

TEXTS = ["iid", "label-sorted", "dirichlet(0.001)", "dirichlet(0.3)", "dirichlet(100)"]
LABELS = {
    "ten classes": np.arange(500) % 10,
    "two unequal ones": np.array([0.0] * 90 + [1.0] * 10),
    "one": np.zeros(40),
    "all different": np.arange(30),
}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
@pytest.mark.parametrize("size", [1, 3, 30])
def test_every_example_is_given_once_and_nobody_is_without(text, labels, size):
    for seed in range(3):
        given = split_rows(labels, size, Split.parse(text), seed)
        assert len(given) == size and all(len(rows) for rows in given)
        assert np.array_equal(np.sort(np.concatenate(given)), np.arange(len(labels)))


@pytest.mark.parametrize("text", TEXTS)
def test_the_seed_decides(text):
    labels, split = LABELS["ten classes"], Split.parse(text)
    one, same, other = (np.concatenate(split_rows(labels, 4, split, seed)).tolist() for seed in (1, 1, 2))
    assert one == same
    assert (one == other) == (text == "label-sorted")


def test_sorted_shares_are_contiguous_in_label_and_of_equal_size():
    given = split_rows(LABELS["ten classes"], 5, Split("sorted"), 0)
    assert [len(rows) for rows in given] == [100] * 5
    assert [sorted(set(rows % 10)) for rows in given] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


def test_a_small_alpha_gives_unlike_shares_and_a_large_one_alike_shares():
    labels = LABELS["ten classes"]

    def unlikeness(text):
        """Mean over ranks of the commonest label's part."""
        given = split_rows(labels, 5, Split.parse(text), 0)
        return np.mean([np.bincount(labels[rows]).max() / len(rows) for rows in given])

    far, near, iid = (unlikeness(text) for text in ("dirichlet(0.05)", "dirichlet(1000)", "iid"))
    assert far > 0.4 > near and abs(near - iid) < 0.1


@pytest.mark.parametrize("text", TEXTS)
def test_more_workers_than_examples_are_refused(text):
    with pytest.raises(CompositionError, match="3 examples cannot be split over 4 workers"):
        split_rows([0, 1, 1], 4, Split.parse(text), 0)


@pytest.mark.parametrize("text", ["iid", "label-sorted", "dirichlet(0.3)", "dirichlet(1e-05)", "dirichlet(100)"])
def test_a_split_reads_what_it_writes(text):
    assert str(Split.parse(text)) == text and Split.parse(str(Split.parse(text))) == Split.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "random",
        "dirichlet",
        "dirichlet()",
        "dirichlet(0)",
        "dirichlet(-1)",
        "dirichlet(1e999)",
        "dirichlet(e)",
        "iid(1)",
    ],
)
def test_other_texts_are_refused_with_what_would_do(text):
    with pytest.raises(CompositionError, match="dirichlet"):
        Split.parse(text)


def test_settings_that_do_not_belong_together_are_refused():
    with pytest.raises(CompositionError, match="has no alpha"):
        Split("iid", 0.3)
    with pytest.raises(CompositionError, match="alpha must be positive"):
        Split("dirichlet")
    with pytest.raises(CompositionError, match="kind must be"):
        Split("other")


def test_a_text_is_cut_into_stretches():
    assert split_text(10, 3, Split(), 3) == [(0, 3), (3, 6), (6, 10)]
    with pytest.raises(CompositionError, match="10 tokens cannot be split over 3 workers: each needs at least 4"):
        split_text(10, 3, Split(), 4)
    for text in ("label-sorted", "dirichlet(0.3)"):
        with pytest.raises(CompositionError, match="a text has no labels and can only be split iid"):
            split_text(10, 1, Split.parse(text), 1)
