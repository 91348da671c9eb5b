"""Positions on the wire: every build of the C kernels writes and reads the bytes of the torch expressions."""

import pytest
import torch

from helpers.cases import KINDS
from helpers.same_bits import alike, drawn
from thinwire.core import DecodeError, derive_key
from thinwire.kernels import dispatch, native, positions, reference
from thinwire.kernels.native import calls_positions

CPU = torch.device("cpu")
KEY = derive_key("native positions")
NUMELS = (1, 2, 7, 8, 9, 64, 65, 1000, 4096, 100_003)
DENSITIES = (0.0, 0.001, 0.01, 0.2, 0.5, 0.9, 1.0)

pytestmark = pytest.mark.skipif(not native.runnable_builds(), reason="no C kernels were built here")


def places(numel, density, seed=0):
    return reference.distinct_positions(derive_key(seed), max(1, int(density * numel)), numel, CPU)


def same_coding(library, some, numel):
    ours, theirs = calls_positions.encode_positions(library, some, numel), positions.encode_positions(some, numel)
    assert ours.coding == theirs.coding == int(theirs.data[0]) & 3 and alike(ours.data, theirs.data)
    for decode in (positions.decode_positions, lambda *args: calls_positions.decode_positions(library, *args)):
        assert alike(decode(ours.data, some.numel(), numel), some)
    return ours.coding


def test_all_codings_are_written_and_read_the_same(library):
    codings = {same_coding(library, places(n, density), n) for n in NUMELS for density in DENSITIES}
    crowded = torch.tensor([1000, 1001, 1002, 1003])
    assert codings | {same_coding(library, crowded, 1004)} == {0, 1, 2}


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 5000])
def test_gaps_of_all_lengths_are_written_and_read_the_same(library, count):
    some = (drawn("heavy tails", count).abs() * 9).long().cumsum(0) + torch.arange(count)
    for numel in (int(some[-1]) + 1, 2 * int(some[-1]) + 5, 1 << 40):
        assert same_coding(library, some, numel) in (0, 1, 2)


@pytest.mark.parametrize("bad", [[5, 3], [-1], [2, 2], [0, 1, 1]])
def test_positions_that_do_not_ascend_are_refused(library, bad):
    for encode in (positions.encode_positions, lambda *args: calls_positions.encode_positions(library, *args)):
        with pytest.raises(ValueError, match="must ascend"):
            encode(torch.tensor(bad), 10)


def read(decode, *arguments):
    try:
        return decode(*arguments).tolist()
    except DecodeError:
        return None


def readings(library, data, count, numel):
    """By C itself, since its door would ask the definition where something is wrong; by the door; by the definition."""
    out = torch.zeros(count, dtype=torch.int64)
    width = positions.width_of(numel)
    wrong = library.tw_decode_positions(data.data_ptr(), data.numel(), count, numel, width, out.data_ptr())
    door = read(lambda *args: calls_positions.decode_positions(library, *args), data, count, numel)
    return None if wrong else out.tolist(), door, read(positions.decode_positions, data, count, numel)


def read_alike(library, data, count, numel):
    """Whether all can read it; that they say the same is held here."""
    by_c, door, expected = readings(library, data, count, numel)
    assert by_c == door == expected
    return expected is not None


@pytest.mark.parametrize("seed", range(40))
def test_any_bytes_are_read_the_same_or_refused_by_both(library, seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(25):
        size, numel = int(torch.randint(2, 40, (1,), generator=generator)), 1 << (seed % 20)
        data = torch.randint(0, 256, (size,), generator=generator).to(torch.uint8)
        count = int(torch.randint(1, min(numel, 20) + 1, (1,), generator=generator))
        data[0] = (seed % 3) | (seed % 5) << 2 if seed % 3 == 2 else seed % 3
        data[1] = count
        by_c, door, expected = readings(library, data, count, numel)
        assert by_c == door == expected


@pytest.mark.parametrize("numel", [9, 64, 1000])
def test_a_changed_byte_is_read_the_same_or_refused_by_both(library, numel):
    for density in (0.01, 0.1, 0.6):
        some = places(numel, density)
        data = positions.encode_positions(some, numel).data
        assert read_alike(library, data, some.numel(), numel)
        for at in range(data.numel()):
            for flip in (1, 2, 0x80, 0xFF):
                changed = data.clone()
                changed[at] ^= flip
                read_alike(library, changed, some.numel(), numel)
        for cut in (data[:-1], torch.cat((data, data[:1]))):
            read_alike(library, cut.clone(), some.numel(), numel)


def test_no_positions_are_read_too(library):
    nothing = positions.encode_positions(torch.zeros(0, dtype=torch.int64), 8).data
    assert calls_positions.decode_positions(library, nothing, 0, 8).tolist() == []


def test_a_count_without_an_end_is_refused(library):
    for data in ([0, 0x80], [0] + [0xFF] * 9, [2] + [0x80] * 12):
        assert not read_alike(library, torch.tensor(data, dtype=torch.uint8), 1, 8)


# what is taken out, and means


def taken_alike(library, flat, other, k):
    ours, theirs = calls_positions.take_largest(library, flat, other, k), positions.take_largest(flat, other, k)
    return alike(tuple(ours[:3]), tuple(theirs[:3])) and alike(ours.coded.data, theirs.coded.data)


@pytest.mark.parametrize("kind", [*KINDS, "limits"])
@pytest.mark.parametrize("size", [1, 7, 33, 4096, 4097, 100_003])
def test_the_largest_are_taken_out_the_same(library, kind, size):
    numbers = drawn(kind, size)
    for k in {1, 2, size // 100, size // 9, size // 2, size - 1, size} - {0, -1}:
        if k <= size:
            assert taken_alike(library, numbers, numbers.flip(0), k)
            assert taken_alike(library, numbers, drawn("limits", size, seed=3) * 0.7, k)


@pytest.mark.parametrize("seed", range(5))
def test_the_largest_are_taken_out_the_same_where_a_sample_deceives(library, seed):
    x = torch.randn(300_000, generator=torch.Generator().manual_seed(seed))
    x[:: 64 + seed] *= 100
    for pattern in (x, x.sort().values, (x * 4).round(), torch.cat((x[:1000] * 99, x))):
        for k in (1, 3000, 30_000):
            assert taken_alike(library, pattern, pattern, k)


def messages(ranks, count=50, numel=777):
    some = [reference.distinct_positions(derive_key(r), count, numel, CPU) for r in range(ranks)]
    return [drawn("limits", count, r) for r in range(ranks)], [positions.encode_positions(s, numel).data for s in some]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_means_of_sparse_vectors_are_the_same(library, ranks):
    for count in (1, 50, 500, 777):
        values, coded = messages(ranks, count)
        expected = positions.sparse_mean(values, coded, 777)
        assert alike(calls_positions.sparse_mean(library, None, values, coded, 777), expected)


def test_a_mean_of_what_no_encoder_wrote_is_refused(library):
    values, coded = messages(2)
    for wrong in ([values[0][:-1], values[1]], [values[0], torch.ones(778)]):
        with pytest.raises(DecodeError, match="positions"):
            calls_positions.sparse_mean(library, None, wrong, coded, 777)
    with pytest.raises(DecodeError):
        calls_positions.sparse_mean(library, None, values, [coded[0], coded[1][:-1].clone()], 777)
    with pytest.raises(DecodeError, match="a vector"):
        calls_positions.sparse_mean(library, None, values, [coded[0], coded[1][None]], 777)


def test_means_are_written_where_there_is_room(library):
    values, coded = messages(1)
    expected = positions.sparse_mean(values, coded, 777)
    bucket = torch.full((1000,), 7.0)
    out = bucket[100:877].view(7, 111)
    written = calls_positions.sparse_mean(library, out, values, coded, 777)
    assert written.data_ptr() == out.data_ptr() and alike(out.flatten(), expected)
    assert bucket[:100].eq(7).all() and bucket[877:].eq(7).all()
    small = torch.full((5,), 7.0)
    assert alike(calls_positions.sparse_mean(library, small, values, coded, 777), expected) and small.eq(7).all()
    half = torch.zeros(777, dtype=torch.float16)
    assert alike(dispatch.sparse_mean(half, values, coded, 777), expected) and not half.any()
