"""Lengths and counts in seven bits a byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinwire.core import DecodeError
from thinwire.kernels.varint import read_varint, varint


@given(st.integers(0, 2**63 - 1), st.binary(max_size=5), st.binary(max_size=5))
def test_a_number_comes_back_with_the_place_where_it_ends(value, before, after):
    written = varint(value)
    assert read_varint(before + written + after, len(before)) == (value, len(before) + len(written))


@pytest.mark.parametrize(
    ("value", "length"),
    [(0, 1), (127, 1), (128, 2), (16383, 2), (16384, 3), (2**56 - 1, 8), (2**56, 9), (2**63 - 1, 9)],
)
def test_each_byte_holds_seven_bits(value, length):
    assert len(varint(value)) == length


def test_the_layout_is_little_end_first_with_a_mark_on_all_but_the_last_byte():
    assert varint(300) == bytes([0xAC, 0x02])


@given(st.integers(0, 2**63 - 1))
def test_a_truncated_number_is_a_decode_error(value):
    written = varint(value)
    for end in range(len(written)):
        with pytest.raises(DecodeError):
            read_varint(written[:end])


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 9, b"\xff" * 9 + b"\x01", b"\x80" * 1000 + b"\x01"])
def test_a_number_without_an_end_in_nine_bytes_is_a_decode_error(data):
    with pytest.raises(DecodeError):
        read_varint(data)


def test_reading_past_the_end_is_a_decode_error():
    with pytest.raises(DecodeError):
        read_varint(b"\x01", 1)


@given(st.binary(max_size=12), st.integers(0, 12))
def test_any_bytes_give_a_number_below_2_to_63_or_a_decode_error(data, at):
    try:
        value, end = read_varint(data, at)
    except DecodeError:
        return
    assert 0 <= value < 2**63
    assert at < end <= min(len(data), at + 9)
