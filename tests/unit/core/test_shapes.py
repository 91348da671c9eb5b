import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinwire.core import TensorSpec, fold, matrix_dims, near_square, tensor_dims, unfold


@given(st.integers(1, 100_000))
def test_a_vector_becomes_a_matrix_no_longer_than_four_times_its_width_with_less_than_a_row_to_spare(numel):
    rows, columns = near_square(numel)
    assert rows <= columns <= 4 * rows
    assert 0 <= rows * columns - numel < rows


@pytest.mark.parametrize(
    ("numel", "dims"), [(0, (0, 0)), (1, (1, 1)), (2, (1, 2)), (112, (8, 14)), (1000, (25, 40)), (1009, (31, 33))]
)
def test_divisors_are_taken_where_there_are_any(numel, dims):
    assert near_square(numel) == dims


def test_a_layer_is_its_outputs_against_all_the_rest():
    assert matrix_dims((64, 3, 7, 7)) == (64, 147)
    assert matrix_dims((10, 20)) == (10, 20)
    assert matrix_dims((112,)) == (8, 14)
    assert matrix_dims(()) == (1, 1)


def test_a_convolution_keeps_its_four_modes_as_a_tensor():
    assert tensor_dims((64, 3, 7, 7)) == (64, 3, 7, 7)
    assert tensor_dims((10, 20)) == (10, 20)
    assert tensor_dims((112,)) == (8, 14)


def test_given_dimensions_are_for_layers_with_just_as_many_elements():
    given_dims = (7, 2, 2, 2, 2)
    assert tensor_dims((112,), given_dims) == given_dims
    assert tensor_dims((8, 2, 7), given_dims) == given_dims
    assert tensor_dims((64, 3, 7, 7), given_dims) == (64, 3, 7, 7)
    assert tensor_dims((113,), given_dims) == near_square(113)
    assert matrix_dims((112,), (14, 8)) == (14, 8)
    assert matrix_dims((10, 20), (14, 8)) == (10, 20)


@given(st.lists(st.integers(0, 5), max_size=4))
def test_what_is_folded_unfolds_to_the_same_tensor(shape):
    tensor = torch.arange(float(math.prod(shape))).view(shape)
    for dims in (matrix_dims(shape), tensor_dims(shape)):
        block = fold(tensor, dims)
        assert tuple(block.shape) == dims
        assert torch.equal(unfold(block, TensorSpec.of("x", tensor)), tensor)
        assert block.sum() == tensor.sum()  # what is spare is zero
