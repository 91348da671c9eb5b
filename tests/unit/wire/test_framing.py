"""A payload as one run of bytes, and the runs of bytes that are no payload."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire.core import DecodeError, Payload
from thinwire.kernels.varint import varint
from thinwire.wire import as_bytes, from_bytes, lengths_bytes, pack_payload, unpack_payload

torch.set_num_threads(1)

DTYPES = [
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]


def blob_of(data: bytes) -> torch.Tensor:
    return torch.tensor(list(data), dtype=torch.uint8)


def part(dtype: torch.dtype, data: bytes) -> torch.Tensor:
    return blob_of(data * dtype.itemsize).view(dtype)


def same_parts(first: Payload, second: Payload) -> bool:
    """Bit for bit, so that NaN equals itself."""
    return [p.dtype for p in first.parts] == [p.dtype for p in second.parts] and all(
        torch.equal(as_bytes(a), as_bytes(b)) for a, b in zip(first.parts, second.parts, strict=True)
    )


@given(st.lists(st.tuples(st.sampled_from(DTYPES), st.binary(max_size=40)), max_size=5))
@settings(max_examples=200, deadline=None)
def test_a_payload_comes_back_bit_for_bit(drawn):
    payload = Payload(tuple(part(dtype, data) for dtype, data in drawn))
    blob = pack_payload(payload)
    assert blob.dtype == torch.uint8
    assert blob.numel() == payload.num_bytes + lengths_bytes(payload)
    assert same_parts(unpack_payload(blob, [dtype for dtype, _ in drawn]), payload)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shift", range(9))
def test_parts_need_no_alignment(dtype, shift):
    values = torch.arange(5).to(dtype)
    payload = Payload((torch.zeros(shift, dtype=torch.uint8), values))
    within = torch.cat((torch.zeros(shift, dtype=torch.uint8), pack_payload(payload)))[shift:]  # a blob inside another
    assert torch.equal(unpack_payload(within, [torch.uint8, dtype]).parts[1], values)


def test_an_aligned_part_is_a_view_and_costs_no_copy():
    blob = pack_payload(Payload((torch.zeros(2, dtype=torch.uint8), torch.ones(4))))  # 2 lengths + 2 bytes: aligned
    got = unpack_payload(blob, [torch.uint8, torch.float32]).parts[1]
    assert got.untyped_storage().data_ptr() == blob.untyped_storage().data_ptr()


@pytest.mark.parametrize(("num_bytes", "extra"), [(0, 1), (127, 1), (128, 2), (4095, 2)])
def test_framing_adds_one_varint_a_part(num_bytes, extra):
    payload = Payload((torch.zeros(num_bytes, dtype=torch.uint8),))
    assert lengths_bytes(payload) == extra
    assert pack_payload(payload).numel() == num_bytes + extra


def test_a_payload_without_parts_is_no_bytes():
    assert pack_payload(Payload(())).numel() == 0
    assert unpack_payload(torch.zeros(0, dtype=torch.uint8), []).parts == ()


def test_strided_and_scalar_tensors_become_their_values_in_reading_order():
    square = torch.arange(6, dtype=torch.int32).view(2, 3)
    assert from_bytes(as_bytes(square.t()), torch.int32).tolist() == [0, 3, 1, 4, 2, 5]
    assert from_bytes(as_bytes(torch.tensor(1.5)), torch.float32).tolist() == [1.5]


@given(st.lists(st.binary(max_size=12), min_size=1, max_size=4), st.integers(1, 60))
@settings(max_examples=100, deadline=None)
def test_a_truncated_or_longer_message_is_a_decode_error(datas, change):
    payload = Payload(tuple(map(blob_of, datas)))
    blob, dtypes = pack_payload(payload), [torch.uint8] * len(datas)
    with pytest.raises(DecodeError):
        unpack_payload(blob[: max(0, blob.numel() - change)], dtypes)
    with pytest.raises(DecodeError):
        unpack_payload(torch.cat((blob, torch.zeros(change, dtype=torch.uint8))), dtypes)


@pytest.mark.parametrize("announced", [0, 3, 5, 2**31, 2**40, 2**63 - 1])
def test_lengths_that_do_not_add_up_are_a_decode_error(announced):
    with pytest.raises(DecodeError, match="announces"):
        unpack_payload(blob_of(varint(announced) + b"abcd"), [torch.uint8])


def test_two_wrong_lengths_cannot_reach_beyond_the_message():
    for first, second in [(2**63 - 1, 1), (2**62, 2**62), (5, 0), (0, 5)]:
        with pytest.raises(DecodeError):
            unpack_payload(blob_of(varint(first) + varint(second) + b"abcd"), [torch.uint8, torch.uint8])


def test_a_length_that_is_no_whole_number_of_values_is_a_decode_error():
    with pytest.raises(DecodeError, match="not a multiple"):
        unpack_payload(blob_of(varint(6) + b"abcdef"), [torch.float32])
    with pytest.raises(DecodeError, match="not a multiple"):
        from_bytes(torch.zeros(7, dtype=torch.uint8), torch.float64)


@pytest.mark.parametrize("parts", [0, 2, 3])
def test_another_number_of_parts_than_agreed_is_a_decode_error(parts):
    blob = pack_payload(Payload((torch.full((9,), 200, dtype=torch.uint8),)))
    with pytest.raises(DecodeError):
        unpack_payload(blob, [torch.uint8] * parts)


@given(st.binary(max_size=60), st.lists(st.sampled_from(DTYPES), max_size=4))
@settings(max_examples=500, deadline=None)
def test_any_bytes_are_parts_of_the_agreed_types_or_a_decode_error(data, dtypes):
    try:
        payload = unpack_payload(blob_of(data), dtypes)
    except DecodeError:
        return
    assert [p.dtype for p in payload.parts] == dtypes
    assert payload.num_bytes <= len(data)


def test_one_element_with_a_long_stride_becomes_bytes():
    assert as_bytes(torch.ones(4)[1:3:2]).tolist() == [0, 0, 128, 63]


@pytest.mark.parametrize("before", (0, 1, 3, 8))
def test_long_parts_begin_where_they_can_be_read_without_a_copy(before):
    payload = Payload((torch.arange(before, dtype=torch.uint8), torch.arange(2000, dtype=torch.float64)))
    blob = pack_payload(payload)
    assert blob.numel() == payload.num_bytes + lengths_bytes(payload)
    small, long = unpack_payload(blob, [torch.uint8, torch.float64]).parts
    assert torch.equal(small, payload.parts[0]) and torch.equal(long, payload.parts[1])
    assert long.untyped_storage().data_ptr() == blob.untyped_storage().data_ptr()


def test_memory_that_is_long_enough_is_used_again():
    into = torch.full((20000,), 255, dtype=torch.uint8)
    payload = Payload((torch.arange(5), torch.ones(2000)))
    blob = pack_payload(payload, into)
    assert blob.data_ptr() == into.data_ptr() and torch.equal(blob, pack_payload(payload))
    assert pack_payload(payload, into[:10]).data_ptr() != into.data_ptr()
