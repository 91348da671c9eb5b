"""Fingerprints of weights: equal for equal bits in any layout, other for one flipped bit, and no temporaries."""

import zlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinwire.integrations.fingerprints import PIECE_BYTES, fingerprint

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64)


def drawn(shape, dtype=torch.float32, seed=0):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return x > 0 if dtype is torch.bool else (8 * x).to(dtype)


def layouts(x):
    """The same elements, with other strides."""
    wide = torch.zeros((*x.shape[:-1], 2 * x.shape[-1]), dtype=x.dtype)
    wide[..., ::2] = x
    return {
        "transposed": x.transpose(0, -1).contiguous().transpose(0, -1),
        "every second": wide[..., ::2],
        "a view": torch.cat([x[:1], x])[1:],
    }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", ((5, 7), (3, 4, 5), (700, 900), (1, 600_000), (600_000, 1), (2, 3, 200_000)), ids=str)
def test_equal_elements_have_equal_fingerprints_in_every_layout(shape, dtype):
    x = drawn(shape, dtype)
    (expected,) = fingerprint([x]).tolist()
    for name, same in layouts(x).items():
        assert torch.equal(same, x) and fingerprint([same]).tolist() == [expected], name


@given(st.integers(0, 4 * 1200 * 250 - 1), st.integers(0, 7), st.booleans())
def test_any_flipped_bit_changes_the_fingerprint_of_its_tensor_only(at, bit, is_strided):
    x, other = drawn((1200, 250)), drawn((30,), seed=1)
    x = x.t().contiguous().t() if is_strided else x
    before = fingerprint([x, other])
    flipped = x.clone(memory_format=torch.contiguous_format)
    flipped.view(-1).view(torch.uint8)[at] ^= 1 << bit
    after = fingerprint([flipped.t().contiguous().t() if is_strided else flipped, other])
    assert after[0] != before[0] and after[1] == before[1]


def test_swapped_elements_and_swapped_tensors_change_fingerprints():
    x, y = drawn((4000,)), drawn((4000,), seed=1)
    swapped = x.clone()
    swapped[[7, 3000]] = x[[3000, 7]]
    assert fingerprint([x, y]).tolist() != fingerprint([y, x]).tolist()
    assert fingerprint([swapped]) != fingerprint([x])


def test_conjugates_scalars_and_empty_tensors_are_read_as_their_values():
    z = drawn((40, 3), torch.complex64)
    for view in (z.conj(), z.conj().imag):  # the second has torch's negative bit
        assert fingerprint([view]) == fingerprint([view.resolve_conj().resolve_neg().clone()])
    assert fingerprint([torch.tensor(2.0)]) == fingerprint([torch.tensor([2.0])])
    assert fingerprint([torch.zeros(0, 3)]).tolist() == [0] and fingerprint([]).tolist() == []
    assert fingerprint([torch.nn.Parameter(torch.ones(3))]) == fingerprint([torch.ones(3)])


def test_a_contiguous_tensor_is_read_where_it_is(monkeypatch):
    x, checksum, read = drawn((3_000_000,)), zlib.crc32, []

    def spy(piece, start):
        read.append((np.frombuffer(piece, np.uint8).ctypes.data, piece.nbytes))
        return checksum(piece, start)

    monkeypatch.setattr(zlib, "crc32", spy)
    fingerprint([x, x[1000:]])
    assert read == [(x.data_ptr(), x.nbytes), (x.data_ptr() + 4000, x.nbytes - 4000)]


@pytest.mark.parametrize("shape", ((6, 500_000), (3000, 1000)), ids=str)
def test_other_layouts_are_copied_in_pieces(shape, monkeypatch):
    copies = []
    contiguous = torch.Tensor.contiguous
    monkeypatch.setattr(torch.Tensor, "contiguous", lambda x: copies.append(x.nbytes) or contiguous(x))
    x = drawn(shape)
    fingerprint([x.t()])
    assert sum(copies) == x.nbytes and max(copies) <= PIECE_BYTES and len(copies) >= x.nbytes // PIECE_BYTES
