"""Reading LIBSVM text, and what is said about text that is not."""

from __future__ import annotations

import numpy as np
import pytest

from thinwire_lab.data.libsvm import parse_libsvm


def test_columns_not_named_are_zero():
    features, labels = parse_libsvm("1 1:0.5 3:-2\n-1 2:1e3\n", features=4)
    np.testing.assert_array_equal(features, [[0.5, 0, -2, 0], [0, 1000, 0, 0]])
    np.testing.assert_array_equal(labels, [1, -1])


def test_features_and_labels_are_float64():
    features, labels = parse_libsvm("1 1:1", features=1)
    assert features.dtype == labels.dtype == np.float64


def test_a_row_may_be_all_zeros():
    features, labels = parse_libsvm("1\n2 1:1\n3\n", features=2)
    np.testing.assert_array_equal(features, [[0, 0], [1, 0], [0, 0]])
    np.testing.assert_array_equal(labels, [1, 2, 3])


@pytest.mark.parametrize("text", ["1 1:1\n2 2:1", "1 1:1 \n2 2:1 \n", "1 1:1\r\n2 2:1\r\n", "+1  1:1\n2\t2:1\n"])
def test_line_ends_and_spacing_do_not_matter(text):
    features, labels = parse_libsvm(text, features=2)
    np.testing.assert_array_equal(features, np.eye(2))
    np.testing.assert_array_equal(labels, [1, 2])


def test_indices_may_start_low_again_in_the_next_line():
    features, _ = parse_libsvm("1 2:1\n1 1:1\n1 1:1\n", features=2)
    np.testing.assert_array_equal(features, [[0, 1], [1, 0], [1, 0]])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "line 2 is empty"),
        ("poisonous 1:1", "line 2: label 'poisonous' is not a number"),
        ("1:1 2:1", "line 2: label '1:1' is not a number"),
        ("nan 1:1", "line 2: label nan is not finite"),
        ("1 1:1 2", "line 2: '2' is not index:value"),
        ("1 1:1 2:", "line 2: '2:' is not index:value"),
        ("1 :1", "line 2: ':1' is not index:value"),
        ("1 1:1:1", "line 2: '1:1:1' is not index:value"),
        ("1 1.5:1", "line 2: '1.5:1' is not index:value"),
        ("1 1:1 # comment", "line 2: '#' is not index:value"),
        ("1 1:inf", "line 2: value inf is not finite"),
        ("1 0:1", "line 2: index 0 is outside 1 to 3"),
        ("1 4:1", "line 2: index 4 is outside 1 to 3"),
        ("1 99999999999999999999:1", "line 2: index 99999999999999999999 is outside 1 to 3"),
        ("1 2:1 1:1", "line 2: index 1 follows 2"),
        ("1 2:1 2:1", "line 2: index 2 follows 2"),
    ],
)
def test_an_error_names_the_line_and_what_was_wrong(line, said):
    with pytest.raises(ValueError) as caught:
        parse_libsvm(f"1 1:1\n{line}\n2 3:1\n", features=3)
    assert str(caught.value).startswith(said)
    assert ";" in str(caught.value)  # and what would do


@pytest.mark.parametrize("text", ["", "\n", " \n\n"])
def test_text_without_rows_is_an_error(text):
    with pytest.raises(ValueError, match="no rows"):
        parse_libsvm(text, features=3)


def test_the_number_of_features_is_at_least_one():
    with pytest.raises(ValueError, match="features must be at least 1, got 0"):
        parse_libsvm("1 1:1\n", features=0)
