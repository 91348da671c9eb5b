"""Sorted positions <-> bytes: every coding comes back, the cheapest is chosen, and gaps come close to the ideal."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire.core import DecodeError
from thinwire.kernels.varint import varint
from thinwire.wire import decode_indices, encode_indices, expected_index_bytes, ideal_index_bits

torch.set_num_threads(1)

CODINGS = {0: "explicit", 1: "bitmap", 2: "rice"}


def positions_of(places) -> torch.Tensor:
    return torch.tensor(sorted(places), dtype=torch.int64)


def drawn_positions(numel: int, count: int, seed: int = 0) -> torch.Tensor:
    return positions_of(random.Random(seed).sample(range(numel), count))


def sizes(places: list[int], numel: int) -> dict[str, int]:
    """Bytes of each coding, from its description rather than its code; the best Rice parameter of all."""
    gaps = [here - before - 1 for before, here in zip([-1, *places], places, strict=False)]
    head = 1 + len(varint(len(places)))
    rice = min(-(-r * len(gaps) // 8) + -(-sum((gap >> r) + 1 for gap in gaps) // 8) for r in range(45))
    explicit = -(-len(places) * max(1, math.ceil(math.log2(max(1, numel)))) // 8)
    return {"explicit": head + explicit, "bitmap": head + -(-numel // 8), "rice": head + rice}


def check_round_trip(positions: torch.Tensor, numel: int) -> str:
    """The coding's name, after everything that holds for any positions was asserted."""
    part = encode_indices(positions, numel)
    assert part.tensor.dtype == torch.uint8
    got = decode_indices(part.tensor, numel)
    assert got.dtype == torch.int64
    assert torch.equal(got, positions)
    kind, _, coding = part.kind.partition(":")
    assert kind == "indices"
    assert coding == CODINGS[int(part.tensor[0]) & 3]
    return coding


@given(st.integers(1, 300).flatmap(lambda d: st.tuples(st.just(d), st.sets(st.integers(0, d - 1)))))
@settings(max_examples=300, deadline=None)
def test_any_positions_come_back(drawn):
    numel, places = drawn
    check_round_trip(positions_of(places), numel)


@given(st.integers(1, 2**40).flatmap(lambda d: st.tuples(st.just(d), st.sets(st.integers(0, d - 1), max_size=30))))
@settings(max_examples=200, deadline=None)
def test_any_few_positions_of_any_size_come_back(drawn):
    numel, places = drawn
    check_round_trip(positions_of(places), numel)


@pytest.mark.parametrize(
    ("coding", "places", "numel"),
    [
        ("explicit", [2**20 - 1], 2**20),  # a lone late position: its gap costs as much and needs a closing one
        ("explicit", [1000, 1001, 1002, 1003], 1004),
        ("bitmap", range(64), 64),
        ("bitmap", [i for i in range(800) if i % 5 not in (1, 3)], 800),
        ("rice", range(0, 10_000, 100), 10_000),
        ("rice", range(0, 2**40, 2**34 - 1), 2**40),
    ],
)
def test_every_coding_is_reached_and_named(coding, places, numel):
    assert check_round_trip(positions_of(places), numel) == coding


@pytest.mark.parametrize("numel", [1, 2, 7, 8, 9, 64, 1000, 4096])
@pytest.mark.parametrize("density", [0.0, 0.001, 0.01, 0.05, 0.2, 0.5, 0.9, 1.0])
def test_the_cheapest_coding_is_chosen_for_positions_at_random(numel, density):
    for seed in range(5):
        positions = drawn_positions(numel, math.ceil(density * numel), seed)
        part, cost = encode_indices(positions, numel), sizes(positions.tolist(), numel)
        coding = check_round_trip(positions, numel)
        assert part.tensor.numel() == cost[coding] or coding == "rice"  # Rice's parameter is found by looking nearby:
        assert part.tensor.numel() <= min(cost.values()) * 1.02 + 1  # ... two in a hundred may be missed, no more


@given(st.integers(1, 2000).flatmap(lambda d: st.tuples(st.just(d), st.sets(st.integers(0, d - 1), max_size=200))))
@settings(max_examples=200, deadline=None)
def test_no_message_is_longer_than_explicit_positions_or_a_bitmap(drawn):
    numel, places = drawn
    cost = sizes(sorted(places), numel)
    assert encode_indices(positions_of(places), numel).tensor.numel() <= min(cost["explicit"], cost["bitmap"])


@pytest.mark.parametrize("numel", [0, 1, 2, 8, 1000, 2**33, 2**40])
def test_no_position_at_all_takes_two_bytes(numel):
    check_round_trip(positions_of([]), numel)
    assert encode_indices(positions_of([]), numel).tensor.numel() == 2


@pytest.mark.parametrize("numel", [1, 2, 7, 8, 9, 63, 64, 65, 1000])
def test_all_positions_take_a_bit_each(numel):
    check_round_trip(torch.arange(numel), numel)
    head = 1 + len(varint(numel))
    assert encode_indices(torch.arange(numel), numel).tensor.numel() <= head + -(-numel // 8)


@pytest.mark.parametrize("numel", [1, 2, 3, 255, 256, 257, 2**31, 2**31 + 1, 2**40])
def test_a_single_position_comes_back_wherever_it_is(numel):
    for place in {0, min(1, numel - 1), numel // 2, max(0, numel - 2), numel - 1}:
        check_round_trip(positions_of([place]), numel)


@pytest.mark.parametrize("count", [2, 3, 100, 2000])
@pytest.mark.parametrize("numel", [2**31 + 7, 2**33 + 5, 2**40])
def test_positions_beyond_2_to_31_come_back_in_a_coding_that_fits_memory(numel, count):
    positions = torch.cat((drawn_positions(numel - 1, count, numel % 97), torch.tensor([numel - 1])))
    assert check_round_trip(positions, numel) in ("explicit", "rice")
    assert encode_indices(positions, numel).tensor.numel() < 6 * count + 8


@pytest.mark.parametrize("count", [2, 50])
@pytest.mark.parametrize("places", ["first", "last"])
def test_positions_crowded_at_one_end_of_2_to_40_come_back(places, count):
    numel = 2**40
    check_round_trip(torch.arange(count) + (numel - count if places == "last" else 0), numel)


@pytest.mark.parametrize("density", [0.001, 0.01, 0.05, 0.2])
def test_gaps_come_within_a_tenth_of_the_ideal(density):
    numel = 2**20
    count = round(density * numel)
    generator = torch.Generator().manual_seed(5)
    positions = torch.randperm(numel, generator=generator)[:count].sort().values
    assert check_round_trip(positions, numel) == "rice"
    bits = 8 * encode_indices(positions, numel).tensor.numel()
    assert bits <= 1.1 * ideal_index_bits(count, numel)
    assert bits >= ideal_index_bits(count, numel)  # ... and not by miracle
    assert expected_index_bytes(count, numel) == pytest.approx(bits / 8, rel=0.1)


@pytest.mark.parametrize(("count", "numel"), [(0, 10), (10, 10), (1, 1024), (3, 17), (50, 100), (7, 1000)])
def test_the_ideal_is_the_logarithm_of_the_number_of_choices(count, numel):
    assert ideal_index_bits(count, numel) == pytest.approx(math.log2(math.comb(numel, count)), abs=1e-9)


def test_a_message_is_the_same_for_the_same_positions():
    positions = drawn_positions(5000, 250)
    assert torch.equal(encode_indices(positions, 5000).tensor, encode_indices(positions.clone(), 5000).tensor)


# What is refused. The suite over all compressors (contracts/test_decoders_refuse.py) adds mutations by the thousand.


def message(*data: int) -> torch.Tensor:
    return torch.tensor(data, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("blob", "numel"),
    [
        (message(), 8),
        (message(0), 8),
        (torch.zeros(2, 2, dtype=torch.uint8), 8),
        (torch.zeros(4), 8),
        (message(3, 0), 8),  # no such coding
        (message(0 | 1 << 2, 0), 8),  # a Rice parameter where none belongs
        (message(1 | 1 << 2, 0, 0), 8),
        (message(0, 9) + 0, 8),  # nine of eight places
        (message(0, 2, 0b001_001), 8),  # the same place twice
        (message(0, 2, 0b001_010), 8),  # descending
        (message(0, 1, 0b111), 7),  # place 7 of 0 ... 6
        (message(0, 1), 8),  # announced, not there
        (message(0, 1, 0, 0), 8),  # there, not announced
        (message(1, 2, 0b1), 8),  # fewer marks than announced
        (message(1, 1, 0b11), 8),  # more
        (message(1, 1, 1, 0), 8),  # a bitmap of another size
        (message(2, 2, 0b1), 8),  # one unary number of two
        (message(2, 1, 0b11), 8),  # two of one
        (message(2, 1, 0, 0b1), 8),  # a gap of eight: place 8 of 0 ... 7
        (message(2, 1, 0, 0, 0, 0, 1), 8),  # more unary bits than places
        (message(2 | 1 << 2, 1), 8),  # no plane of low bits
        (message(2 | 63 << 2, 1, *[0] * 8, 1), 8),  # gaps of 63 bits
        (message(0, *[0xFF] * 9), 8),  # a count without end
    ],
)
def test_what_no_encoder_writes_is_a_decode_error(blob, numel):
    with pytest.raises(DecodeError):
        decode_indices(blob, numel)


def test_more_positions_than_the_receiver_allows_are_a_decode_error():
    blob = encode_indices(torch.arange(0, 100, 10), 100).tensor
    assert decode_indices(blob, 100, max_count=10).numel() == 10
    with pytest.raises(DecodeError, match="expected 0 to 9"):
        decode_indices(blob, 100, max_count=9)


@given(st.binary(min_size=0, max_size=30), st.sampled_from([0, 1, 5, 8, 60, 1000, 2**31 + 7, 2**40]))
@settings(max_examples=1000, deadline=None)
def test_any_bytes_are_ascending_positions_below_numel_or_a_decode_error(data, numel):
    try:
        positions = decode_indices(torch.tensor(list(data), dtype=torch.uint8), numel)
    except DecodeError:
        return
    places = positions.tolist()
    assert places == sorted(set(places))
    assert all(0 <= place < numel for place in places)
