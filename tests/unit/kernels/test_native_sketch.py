"""Every build of the C kernels gives the bits of the numpy form: sketches, the order of peeling, and what is read."""

import numpy as np
import pytest
import torch

from helpers.same_bits import alike, drawn
from thinwire.core import derive_key
from thinwire.kernels import dispatch, distinct_positions
from thinwire.kernels.native import calls_sketch
from thinwire.kernels.sketch import cells_for, peel, peeling_order, sketch, table_cells

CPU = torch.device("cpu")
KEY = derive_key("native sketch")


def positions_of(count, numel):
    return distinct_positions(derive_key(count, "positions"), count, numel, CPU)


def same_order(ours, theirs):
    arrays, expected = (
        (order.at, order.signs, *(part for pair in order.rounds for part in pair)) for order in (ours, theirs)
    )
    equal = [a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(arrays, expected, strict=True)]
    return all(equal) and alike(ours.left, theirs.left)


@pytest.mark.parametrize("lanes", (1, 16, 1000))
@pytest.mark.parametrize("share", (0.5, 1.15, 1.23, 1.3))
@pytest.mark.parametrize("count", (1, 2, 63, 64, 65, 511, 512, 513, 5000))
def test_sketches_orders_and_what_is_read_are_the_same(library, count, share, lanes):
    """Also where cells are too few for all to be read."""
    at, step = positions_of(count, 20 * count + 1), 3 * lanes
    cells = max(1, round(share * count / step)) * step
    order = peeling_order(at, cells, KEY, lanes)
    assert same_order(calls_sketch.peeling_order(library, at, cells, KEY, lanes), order)
    for kind in ("gaussian", "heavy tails", "limits"):
        values = drawn(kind, count).double() * 1.1
        table = sketch(values, at, cells, KEY, lanes)
        assert alike(calls_sketch.sketch(library, values, at, cells, KEY, lanes), table)
        for sent in (table, table.float().clamp(-1e38, 1e38)) if order.rounds else ():
            before = sent.clone()
            ours, theirs = calls_sketch.peel(library, sent, order), peel(sent, order)
            assert alike(tuple(ours), tuple(theirs)) and alike(sent, before)


@pytest.mark.parametrize("count", (1, 300, 2000))
def test_whole_numbers_wrap_around_the_same(library, count):
    at, cells = positions_of(count, 50_000), cells_for(count)
    generator = torch.Generator().manual_seed(count)
    for most in (1 << 20, (1 << 31) - 1):
        values = torch.randint(-most - 1, most, (count,), generator=generator, dtype=torch.int64).to(torch.int32)
        table, order = sketch(values, at, cells, KEY), peeling_order(at, cells, KEY)
        assert alike(calls_sketch.sketch(library, values, at, cells, KEY), table)
        assert alike(tuple(calls_sketch.peel(library, table, order)), tuple(peel(table, order)))


def test_positions_beyond_32_bits_are_hashed_the_same(library):
    for stride in (1 << 31, 1 << 33, (1 << 45) + 12345):
        at = stride * torch.arange(2000)
        for lanes in (1, 7):
            cells = table_cells(at, lanes)
            order = peeling_order(at, cells, KEY, lanes)
            assert same_order(calls_sketch.peeling_order(library, at, cells, KEY, lanes), order)


@pytest.mark.parametrize("count", (2, 256, 257, 1000))
def test_many_in_one_cell_are_left_the_same(library, count):
    at = torch.arange(count)
    order = calls_sketch.peeling_order(library, at, 3, KEY)
    assert same_order(order, peeling_order(at, 3, KEY)) and bool(order.left.all()) and not order.rounds
    twice = torch.zeros(count, dtype=torch.int64)  # the same position again and again: never alone
    assert same_order(calls_sketch.peeling_order(library, twice, 300, KEY), peeling_order(twice, 300, KEY))


def test_what_cannot_be_read_is_left_by_whoever_serves():
    """No rounds, no positions: nothing for C to do."""
    for at in (torch.arange(50), torch.zeros(0, dtype=torch.int64)):
        table = torch.tensor([1.0, 2.0, 3.0])
        values, rest = dispatch.peel(table, dispatch.peeling_order(at, 3, KEY))
        assert not values.any() and values.numel() == at.numel() and alike(rest, table.double())


def test_c_is_given_what_fits_or_refuses(library):
    at, cells = positions_of(100, 2000), cells_for(100)
    order = calls_sketch.peeling_order(library, at, cells, KEY)
    with pytest.raises(MemoryError, match="at most 4294967296"):
        calls_sketch.peeling_order(library, at, 3 << 31, KEY)
    with pytest.raises(IndexError, match="not below 30"):
        calls_sketch.peel(library, torch.zeros(30), order)
    with pytest.raises(TypeError, match="C kernels"):
        calls_sketch.peel(library, torch.zeros(cells), order._replace(left=order.left[:50]))
    with pytest.raises(TypeError, match="C kernels"):
        calls_sketch.sketch(library, torch.zeros(5, dtype=torch.float64), at, cells, KEY)
    for bad, lanes in ((0, 1), (100, 1), (96, 64)):
        for call in (
            lambda bad=bad, lanes=lanes: calls_sketch.peeling_order(library, at, bad, KEY, lanes),
            lambda bad=bad, lanes=lanes: calls_sketch.sketch(library, at.double(), at, bad, KEY, lanes),
        ):
            with pytest.raises(ValueError, match="cells must be a positive multiple"):
                call()
