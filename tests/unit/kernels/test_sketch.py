"""Sketches add up, and peeling reads the sum back or says what it could not read."""

import numpy as np
import pytest
import torch

from thinwire.core import derive_key
from thinwire.kernels import (
    bloom_bits,
    bloom_form,
    bloom_positions,
    cells_for,
    distinct_positions,
    median_estimate,
    peel,
    peeling_order,
    sketch,
    table_cells,
)
from thinwire.kernels.sketch import _places, words

CPU = torch.device("cpu")
KEY = derive_key("test sketch")


def positions_of(count, numel, seed=0):
    return distinct_positions(derive_key(seed, "positions"), count, numel, CPU)


def supports(kind, workers, count, numel):
    if kind == "identical":
        return [positions_of(count, numel)] * workers
    pool = positions_of(workers * count, numel, seed=1)
    if kind == "disjoint":
        return [pool[r::workers] for r in range(workers)]
    return [pool[r * count // 2 : r * count // 2 + count] for r in range(workers)]  # half shared with each neighbour


def whole_numbers(count, seed, most=1 << 20):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-most, most, (count,), generator=generator, dtype=torch.int32)


@pytest.mark.parametrize("kind", ("identical", "partly shared", "disjoint"))
@pytest.mark.parametrize("workers", (1, 2, 3, 8, 64))
@pytest.mark.parametrize("lanes", (1, 16))
def test_the_sum_of_sketches_peels_to_the_sum_of_inputs(kind, workers, lanes):
    numel, count = 20_000, 150
    own = supports(kind, workers, count, numel)
    union = torch.cat(own).unique()
    cells = table_cells(union, lanes)
    total, table, floats = torch.zeros(numel, dtype=torch.int32), 0, 0
    for rank, at in enumerate(own):
        values = whole_numbers(count, rank)
        total[at] += values
        table = table + sketch(values, at, cells, KEY, lanes)
        floats = floats + sketch(values.double(), at, cells, KEY, lanes).float()
    order = peeling_order(union, cells, KEY, lanes)
    peeled, read = peel(table, order), ~order.left
    assert read.double().mean() > 0.99  # a few of many lanes may fail; see the rule's own test
    assert torch.equal(peeled.values[read], total[union][read])
    approximate = peel(floats, order)
    torch.testing.assert_close(
        approximate.values[read], total[union][read].double(), rtol=0, atol=1e-5 * 2**20 * workers
    )


def test_a_sketch_is_linear():
    at = positions_of(500, 9_000)
    a, b = whole_numbers(500, 1), whole_numbers(500, 2)
    assert torch.equal(sketch(a, at, 300, KEY) + sketch(b, at, 300, KEY), sketch(a + b, at, 300, KEY))
    assert torch.equal(sketch(a.double(), at, 300, KEY), sketch(a, at, 300, KEY).double())


def test_enough_cells_read_everything_and_too_few_are_known():
    at, values = positions_of(10_000, 200_000), whole_numbers(10_000, 3)
    for share, whole in ((1.30, True), (1.15, False)):
        cells = 3 * round(share * 10_000 / 3)
        order = peeling_order(at, cells, KEY)
        peeled = peel(sketch(values, at, cells, KEY), order)
        assert bool(order.left.any()) != whole
        assert torch.equal(peeled.values[~order.left], values[~order.left]), "what was read is right all the same"
        assert bool(peeled.rest.any()) != whole
        assert whole or 0.5 < order.left.double().mean() < 0.7


@pytest.mark.parametrize("count", (0, 1, 2, 30, 1_000, 9_999, 10_000))
def test_the_size_rule_usually_suffices(count):
    failures = 0
    for trial in range(20):
        at = positions_of(count, 40 * count + 1, trial)
        failures += bool(peeling_order(at, cells_for(count), derive_key(trial)).left.any())
    assert failures <= 1


def test_the_size_rule_is_a_multiple_of_three_and_never_falls():
    sizes = [cells_for(count) for count in range(0, 30_000, 7)]
    assert all(size % 3 == 0 for size in sizes) and sizes == sorted(sizes)
    assert cells_for(10_000) == 13_032 and cells_for(100) == 216


@pytest.mark.parametrize("stride", (1, 3, 1024, 1 << 16, 1 << 33))
def test_regular_positions_peel_like_random_ones(stride):
    at = stride * torch.arange(2_000)
    failures = sum(bool(peeling_order(at, 2_700, derive_key(trial)).left.any()) for trial in range(20))
    assert failures <= 2


def test_hashes_differ_beyond_32_bits():
    items = np.array([5, 5 + (1 << 32), 5 + (1 << 33)])
    assert len(set(words(items, KEY).tolist())) == 3


def test_each_row_has_cells_of_its_own_and_signs_are_fair():
    at, signs = _places(np.arange(30_000), 999, KEY, 1)
    for row in range(3):
        assert at[row].min() == 333 * row and at[row].max() == 333 * row + 332
        assert abs(signs[row].mean()) < 0.03
    assert abs((signs[0] * signs[1]).mean()) < 0.03


def test_lanes_keep_neighbours_together():
    at, _ = _places(np.arange(64 * 100), 3 * 64 * 7, KEY, 64)
    assert (at % 64 == np.arange(64 * 100) % 64).all()
    blocks = (at // 64).reshape(3, 100, 64)
    assert (blocks == blocks[:, :, :1]).all()


@pytest.mark.parametrize("count", (255, 256, 257, 1_000))
def test_many_in_one_cell_are_not_taken_for_one(count):
    """A degree of 257 is 1 in a byte."""
    order = peeling_order(torch.arange(count), 3, KEY)
    assert bool(order.left.all()) and not order.rounds


def test_whole_numbers_wrap_around_and_come_back():
    at, cells = positions_of(2_000, 50_000), cells_for(2_000)
    values = torch.full((2_000,), 2**31 - 1, dtype=torch.int32)
    table = sketch(values, at, cells, KEY)
    assert bool((table == -2).any()), "two in a cell wrap around"
    assert torch.equal(peel(table, peeling_order(at, cells, KEY)).values, values)


def test_rounding_errors_do_not_multiply_along_chains():
    at = positions_of(20_000, 400_000)
    values = torch.randn(20_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    cells = 3 * 8_200  # 1.23 each: long chains
    order = peeling_order(at, cells, KEY)
    assert not order.left.any() and len(order.rounds) > 40
    assert float((peel(sketch(values, at, cells, KEY).float(), order).values - values).abs().max()) < 1e-4


def test_the_median_is_right_where_two_cells_are_undisturbed_and_a_guess_elsewhere():
    at, values = positions_of(1_000, 20_000), whole_numbers(1_000, 5)
    wide = median_estimate(sketch(values, at, 30_000, KEY), at, KEY)
    assert (wide == values).double().mean() > 0.95
    tight = median_estimate(sketch(values.double(), at, 600, KEY), at, KEY)
    assert 1 < float((tight - values).square().sum() / values.double().square().sum()) < 4  # worse than sending nothing


def test_cells_that_do_not_fit_the_rows_are_refused():
    for cells, lanes in ((0, 1), (100, 1), (96, 64)):
        with pytest.raises(ValueError, match="cells must be a positive multiple"):
            sketch(torch.ones(1), torch.zeros(1, dtype=torch.int64), cells, KEY, lanes)


@pytest.mark.parametrize("false_positives", (0.1, 0.01, 0.001))
def test_a_bloom_filter_forgets_nothing_and_errs_as_rarely_as_asked(false_positives):
    numel, at = 100_000, positions_of(1_000, 100_000)
    num_bytes, hashes = bloom_form(1_000, false_positives)
    found = bloom_positions(bloom_bits(at, num_bytes, hashes, KEY), numel, hashes, KEY)
    assert torch.isin(at, found).all() and torch.equal(found, found.sort().values)
    assert (found.numel() - 1_000) / numel < 1.3 * false_positives
    assert 8 * num_bytes <= 1.45 * 1_000 * hashes + 8


def test_filters_join_by_or():
    a, b = positions_of(300, 9_000, 1), positions_of(300, 9_000, 2)
    filters = [bloom_bits(at, 500, 4, KEY) for at in (a, b, torch.cat((a, b)))]
    assert torch.equal(filters[0] | filters[1], filters[2])


def test_an_empty_filter_holds_nothing():
    num_bytes, hashes = bloom_form(0, 0.01)
    assert (
        bloom_positions(bloom_bits(torch.zeros(0, dtype=torch.int64), num_bytes, hashes, KEY), 50, hashes, KEY).numel()
        == 0
    )
