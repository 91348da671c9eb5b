"""Without a compiler: numpy in chunks gives the bits of the torch expressions."""

import pytest
import torch

from helpers.cases import KINDS, draw
from thinwire.kernels import chunked, codes, dispatch

SIZES = (1, 9, 65_535, 65_536, 65_537, 200_003)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_positions_and_signs(kind, size):
    numbers = draw(kind, (size,))
    assert torch.equal(chunked.pack_signs(numbers), codes.pack_signs(numbers))
    for k in {1, max(1, size // 100), max(1, size // 9), size}:
        assert torch.equal(chunked.largest_magnitudes(numbers, k), codes.largest_magnitudes(numbers, k))


def test_ties_go_to_the_first_also_across_chunks():
    numbers = torch.ones(200_000).index_fill_(0, torch.arange(0, 200_000, 500), 2.0)
    assert chunked.largest_magnitudes(numbers, 390).tolist() == list(range(0, 390 * 500, 500))
    assert torch.equal(chunked.largest_magnitudes(numbers, 1000), codes.largest_magnitudes(numbers, 1000))


def test_a_sample_that_deceives_costs_time_alone():
    """All that is large lies where no sample is taken."""
    numbers = torch.full((1 << 20,), 1e-3)
    numbers[1:60_000:64] = torch.arange(1, 939, dtype=torch.float32)
    for k in (10, 900, 20_000):
        assert torch.equal(chunked.largest_magnitudes(numbers, k), codes.largest_magnitudes(numbers, k))


def test_it_serves_where_c_was_not_built(monkeypatch):
    calls = []
    monkeypatch.setattr(dispatch, "library", lambda: None)
    monkeypatch.setattr(chunked, "_low_level", lambda numbers, k: calls.append(k))
    assert dispatch.largest_magnitudes(torch.tensor([1.0, -3.0, 2.0]), 2).tolist() == [1, 2] and calls == [2]
