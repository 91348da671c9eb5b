"""The hot loops by their definitions: what they compute, exactly or in distribution."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire.core import Key, derive_key
from thinwire.kernels import distinct_positions, largest, mean_magnitude, mix32, noise16, reference

torch.set_num_threads(1)

CPU = torch.device("cpu")
KEYS = [Key(0), Key(1), Key(2**64 - 1), Key(3 << 32), derive_key("noise", 1), derive_key("noise", 2)]


# Words


def slowly_mixed(word: int) -> int:
    """The finaliser in unsigned arithmetic of 32 bits."""
    word = ((word ^ (word >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    word = ((word ^ (word >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return word ^ (word >> 16)


def signed(word: int) -> int:
    return word - 2**32 if word >= 2**31 else word


@given(st.lists(st.integers(0, 2**32 - 1), max_size=50))
@settings(max_examples=200, deadline=None)
def test_mixing_is_unsigned_arithmetic_of_32_bits(words):
    mixed = mix32(torch.tensor([signed(word) for word in words], dtype=torch.int32))
    assert mixed.dtype == torch.int32
    assert mixed.tolist() == [signed(slowly_mixed(word)) for word in words]
    in_numpy = mix32(np.array([signed(word) for word in words], dtype=np.int32))
    assert in_numpy.dtype == np.int32
    assert in_numpy.tolist() == mixed.tolist()


@pytest.mark.parametrize("word", [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFF0000, 0xFFFFFFFF])
def test_mixing_is_right_at_the_ends_of_the_range(word):
    assert mix32(torch.tensor([signed(word)], dtype=torch.int32)).tolist() == [signed(slowly_mixed(word))]


def test_mixing_maps_different_words_to_different_words():
    assert mix32(torch.arange(2**18, dtype=torch.int32)).unique().numel() == 2**18


# Noise


@pytest.mark.parametrize("key", KEYS)
def test_noise_is_a_hash_of_key_and_element(key):
    start, stride = key & 0xFFFFFFFF, (key >> 32 | 1) & 0xFFFFFFFF
    words = [slowly_mixed((start + pair * stride) & 0xFFFFFFFF) for pair in range(50)]
    halves = [half for word in words for half in (word & 0xFFFF, word >> 16)]
    assert noise16(key, 99, CPU).tolist() == halves[:99]


@pytest.mark.parametrize("key", KEYS)
def test_noise_is_uniform(key):
    count, cells = 2**18, 256
    noise = noise16(key, count, CPU)
    assert int(noise.min()) >= 0 and int(noise.max()) <= 0xFFFF
    for shift in (0, 8):  # the low byte and the high byte of each number
        seen = torch.bincount((noise >> shift) & 0xFF, minlength=cells).double()
        chi_square = float(((seen - count / cells) ** 2).sum() * cells / count)
        assert abs(chi_square - (cells - 1)) < 5 * math.sqrt(2 * (cells - 1))
    uniform = (noise.double() + 0.5) / 65536
    assert abs(float(uniform.mean()) - 0.5) < 5 * math.sqrt(1 / 12 / count)
    assert abs(float(uniform.var()) - 1 / 12) < 5 * math.sqrt(1 / 180 / count)


@pytest.mark.parametrize("key", KEYS)
def test_neighbouring_noise_is_not_correlated(key):
    noise = noise16(key, 2**17, CPU).double() / 65536 - 0.5
    for lag in (1, 2, 3, 512):
        covariance = float((noise[lag:] * noise[:-lag]).mean())
        assert abs(covariance) < 5 / 12 / math.sqrt(noise.numel() - lag)


def test_the_same_key_gives_the_same_noise_and_a_longer_draw_begins_with_the_shorter():
    for count in (0, 1, 2, 7, 8, 1000):
        assert torch.equal(noise16(KEYS[4], count, CPU), noise16(KEYS[4], 1001, CPU)[:count])


def test_other_keys_give_other_noise():
    draws = [noise16(key, 4096, CPU) for key in KEYS]
    for first, second in itertools.combinations(draws, 2):
        assert float((first == second).double().mean()) < 0.01


def test_no_derived_key_gives_a_shifted_copy_of_anothers_noise():
    draws = [noise16(derive_key("shift", i), 4096, CPU) for i in range(12)]
    for first, second in itertools.permutations(draws, 2):
        windows = second.unfold(0, 4, 1)
        assert not bool((windows == first[1000:1004]).all(dim=1).any())


def test_noise_does_not_touch_the_global_generator():
    before = torch.get_rng_state()
    noise16(KEYS[0], 100, CPU)
    distinct_positions(KEYS[0], 10, 100, CPU)
    assert torch.equal(torch.get_rng_state(), before)


# Means


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 511, 512, 513, 100_000])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_the_mean_of_magnitudes_is_that_of_float64(count, scale):
    flat = torch.randn(count, generator=torch.Generator().manual_seed(count)) * scale
    got = mean_magnitude(flat)
    assert got.dtype == torch.float32
    assert got.shape == ()
    assert float(got) == pytest.approx(float(flat.double().abs().mean()), rel=4e-6)


def test_the_mean_of_nothing_is_zero():
    assert mean_magnitude(torch.zeros(0)).tolist() == 0.0


@pytest.mark.parametrize("value", [3e38, -3e38, torch.finfo(torch.float32).max])
def test_the_mean_of_the_largest_numbers_is_finite(value):
    for count in [*range(1, 200), 1023, 1025, 65537]:  # 7 and 14 rounded past the largest number once
        mean = mean_magnitude(torch.full((count,), value))
        assert math.isfinite(mean)
        assert float(mean) == pytest.approx(abs(value), rel=1e-6)


def test_the_mean_does_not_depend_on_the_memory_layout():
    flat = torch.randn(1000, generator=torch.Generator().manual_seed(3))
    strided = torch.stack((flat, torch.zeros(1000)), dim=1)[:, 0]
    assert torch.equal(mean_magnitude(flat), mean_magnitude(strided))


# The largest


def slowly_largest(magnitudes: torch.Tensor, k: int) -> list[int]:
    """A stable descending sort keeps the order of equals, so the first of them come first."""
    return magnitudes.sort(descending=True, stable=True).indices[:k].sort().values.tolist()


def with_ties(count: int, levels: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(levels, (count,), generator=torch.Generator().manual_seed(seed)).float()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), st.data())
@settings(max_examples=200, deadline=None)
def test_the_largest_are_those_of_a_stable_sort(values, data):
    magnitudes = torch.tensor(values, dtype=torch.float32)
    k = data.draw(st.integers(1, len(values)))
    assert largest(magnitudes, k).tolist() == slowly_largest(magnitudes, k)


@pytest.mark.parametrize("levels", [1, 2, 10, 1000, 2**24])
@pytest.mark.parametrize("count", [65_535, 65_536, 70_001])
def test_the_largest_are_exact_on_both_sides_of_the_prefilter(count, levels):
    magnitudes = with_ties(count, levels)
    for k in (1, 2, 65, 655, 8192, 8193, count // 2, count - 1, count):
        assert largest(magnitudes, k).tolist() == slowly_largest(magnitudes, k)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_largest_are_exact_in_any_float_type(dtype):
    magnitudes = with_ties(1000, 30).to(dtype)
    assert largest(magnitudes, 100).tolist() == slowly_largest(magnitudes, 100)


def test_the_prefilter_is_used_where_it_helps_and_only_there():
    spread = torch.rand(2**16, generator=torch.Generator().manual_seed(1))
    candidates = reference._prefilter(spread, 600)
    assert candidates is not None
    assert 600 <= candidates.numel() < 2**15
    assert reference._prefilter(spread[:-1], 600) is None  # too few to bother
    assert reference._prefilter(spread, 2**14) is None  # too many wanted
    assert reference._prefilter(torch.ones(2**16), 600) is None  # all are alike


@pytest.mark.parametrize("where", ["sampled", "between samples"])
def test_a_sample_that_misleads_costs_time_but_not_exactness(where):
    count = 2**17
    step = count // 16384
    magnitudes = torch.rand(count, generator=torch.Generator().manual_seed(2))
    places = torch.arange(0, count, step) + (0 if where == "sampled" else 1)
    magnitudes[places] += 10  # the sample sees all of the large ones, or none
    for k in (1, 1000, 16000):
        assert largest(magnitudes, k).tolist() == slowly_largest(magnitudes, k)


def test_the_largest_of_nothing_are_none():
    assert largest(torch.zeros(0), 0).tolist() == []


def test_all_are_the_largest_when_more_are_wanted_than_there_are():
    assert largest(torch.tensor([3.0, 1.0]), 5).tolist() == [0, 1]


# Positions that follow from a key


@pytest.mark.parametrize("numel", [1, 2, 3, 5, 64, 65, 1000, 4096, 4097, 2**20, 2**33 + 5])
def test_positions_are_distinct_ascending_and_below_numel(numel):
    for seed, count in itertools.product(range(5), (0, 1, 2, 3, 5, 50, 2000)):
        if count > numel:
            continue
        positions = distinct_positions(derive_key(seed), count, numel, CPU)
        assert positions.dtype == torch.int64
        assert positions.numel() == count
        assert bool((positions.diff() > 0).all())
        if count:
            assert int(positions[0]) >= 0 and int(positions[-1]) < numel


@pytest.mark.parametrize("numel", [0, 1, 2, 5, 100])
def test_all_positions_are_taken_when_as_many_are_wanted(numel):
    assert distinct_positions(KEYS[4], numel, numel, CPU).tolist() == list(range(numel))
    assert distinct_positions(KEYS[4], numel + 3, numel, CPU).tolist() == list(range(numel))


def test_positions_follow_from_the_key_alone():
    first = distinct_positions(KEYS[4], 100, 10_000, CPU)
    assert torch.equal(first, distinct_positions(KEYS[4], 100, 10_000, CPU))
    assert not torch.equal(first, distinct_positions(KEYS[5], 100, 10_000, CPU))


@pytest.mark.parametrize(
    ("numel", "count"), [(2, 1), (3, 1), (3, 2), (5, 1), (5, 2), (5, 3), (7, 2), (13, 3), (32, 4), (33, 4), (40, 1)]
)
def test_over_keys_every_position_and_every_pair_is_as_likely(numel, count):
    draws = 2000 if numel <= 32 else 1000  # of five places, the first two were drawn half as often again once
    ones, twos = Counter(), Counter()
    for seed in range(draws):
        places = distinct_positions(derive_key("positions", seed), count, numel, CPU).tolist()
        ones.update(places)
        twos.update(itertools.combinations(places, 2))
    check_frequencies([ones[i] for i in range(numel)], count / numel, draws)
    pairs = list(itertools.combinations(range(numel), 2))
    check_frequencies([twos[pair] for pair in pairs], math.comb(count, 2) / len(pairs), draws)


def check_frequencies(seen: list[int], chance: float, draws: int) -> None:
    deviation = math.sqrt(draws * chance * (1 - chance))
    assert all(abs(times - draws * chance) <= 5 * deviation for times in seen)


def test_over_many_keys_a_large_tensor_is_covered_evenly():
    numel, count, keys, cells = 2**20 + 7, 1000, 200, 64
    seen = torch.zeros(cells, dtype=torch.int64)
    for seed in range(keys):
        places = distinct_positions(derive_key("cover", seed), count, numel, CPU)
        seen += torch.bincount(places * cells // numel, minlength=cells)
    check_frequencies(seen.tolist(), 1 / cells, keys * count)


def test_positions_beyond_2_to_31_are_covered_evenly():
    numel, count, cells = 2**33 + 5, 50_000, 33
    places = distinct_positions(derive_key("far"), count, numel, CPU)
    seen = torch.bincount(places // 2**28, minlength=cells)
    check_frequencies(seen[:32].tolist(), 2**28 / numel, count)
    assert places.unique().numel() == count
    remainders = torch.bincount(places % 64, minlength=64)  # the low bits too
    check_frequencies(remainders.tolist(), 1 / 64, count)
