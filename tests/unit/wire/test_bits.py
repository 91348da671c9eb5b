"""Whole numbers <-> bytes: what goes in comes out, in exactly the bytes promised, little end first."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire.core import DecodeError
from thinwire.wire import pack_bits, packed_bytes, unpack_bits

torch.set_num_threads(1)

WIDTHS = [*range(1, 17), 17, 20, 23, 24, 25, 31, 32, 33, 39, 40, 56]
LENGTHS = [0, 1, 7, 8, 9, 1000]


def slowly_packed(values: list[int], bits: int) -> list[int]:
    """The layout's definition: number i takes bits i·b ... i·b + b - 1 of one long little-end number."""
    whole = sum(value << (bits * i) for i, value in enumerate(values))
    return list(whole.to_bytes((len(values) * bits + 7) // 8, "little"))


def drawn(bits: int, length: int) -> list[int]:
    rng = random.Random(1000 * bits + length)
    return [rng.choice((0, (1 << bits) - 1, rng.getrandbits(bits))) for _ in range(length)]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("bits", WIDTHS)
def test_numbers_come_back_from_the_layout_that_is_promised(bits, length):
    values = drawn(bits, length)
    packed = pack_bits(torch.tensor(values, dtype=torch.int64), bits)
    assert packed.dtype == torch.uint8
    assert packed.numel() == packed_bytes(length, bits) == -(-length * bits // 8)
    assert packed.tolist() == slowly_packed(values, bits)
    assert unpack_bits(packed, length, bits).tolist() == values


@given(st.integers(1, 56).flatmap(lambda b: st.tuples(st.just(b), st.lists(st.integers(0, 2**b - 1), max_size=40))))
@settings(max_examples=200, deadline=None)
def test_any_numbers_of_any_width_come_back(drawn_numbers):
    bits, values = drawn_numbers
    packed = pack_bits(torch.tensor(values, dtype=torch.int64), bits)
    assert packed.tolist() == slowly_packed(values, bits)
    assert unpack_bits(packed, len(values), bits).tolist() == values


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_booleans_and_any_integer_type_will_do(dtype):
    values = [1, 0, 0, 1, 1, 1, 0, 1, 1, 0, 1]
    assert unpack_bits(pack_bits(torch.tensor(values, dtype=dtype), 1), 11, 1).tolist() == values


def test_a_tensor_of_any_shape_is_packed_in_reading_order():
    square = torch.arange(12).view(3, 4)
    assert unpack_bits(pack_bits(square.t(), 4), 12, 4).tolist() == square.t().flatten().tolist()


def test_packing_leaves_its_argument_alone():
    values = torch.arange(16)
    pack_bits(values, 4)
    assert values.tolist() == list(range(16))


@pytest.mark.parametrize(("bits", "dtype"), [(1, torch.uint8), (2, torch.int32), (24, torch.int32), (25, torch.int64)])
def test_numbers_come_in_the_shortest_type_that_can_work_on_them(bits, dtype):
    assert unpack_bits(pack_bits(torch.zeros(3, dtype=torch.int64), bits), 3, bits).dtype == dtype


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("bits", [1, 2, 5, 8, 13, 40])
def test_a_wrong_length_is_a_decode_error(bits, length):
    needed = packed_bytes(length, bits)
    for wrong in {0, needed - 1, needed + 1, 2 * needed + 3} - {needed, -1}:
        with pytest.raises(DecodeError, match="bits take"):
            unpack_bits(torch.zeros(wrong, dtype=torch.uint8), length, bits)


@pytest.mark.parametrize(
    "packed", [torch.zeros(2), torch.zeros(2, dtype=torch.int8), torch.zeros(1, 2).to(torch.uint8)]
)
def test_anything_but_a_vector_of_bytes_is_a_decode_error(packed):
    with pytest.raises(DecodeError):
        unpack_bits(packed, 16, 1)


def test_a_huge_announced_count_is_refused_without_allocating():
    with pytest.raises(DecodeError):
        unpack_bits(torch.zeros(12, dtype=torch.uint8), 2**60, 7)


@pytest.mark.parametrize("bits", [-1, 0, 57, 64])
def test_a_width_no_layout_has_is_the_callers_mistake(bits):
    with pytest.raises(ValueError, match="1 to 56"):
        pack_bits(torch.zeros(8, dtype=torch.int64), bits)
    with pytest.raises(ValueError, match="1 to 56"):
        unpack_bits(torch.zeros(8, dtype=torch.uint8), 8, bits)
