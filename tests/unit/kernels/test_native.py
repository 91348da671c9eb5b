"""Every build of the C kernels that this processor runs gives the bits of the torch expressions."""

import pytest
import torch

from helpers.cases import KINDS
from helpers.same_bits import alike, drawn
from thinwire.core import derive_key
from thinwire.kernels import codes, dispatch, matrices, native, reference
from thinwire.kernels.native import calls, calls_matrices, calls_natural

SIZES = (1, 7, 33, 4096, 4097, 100_003)
CPU = torch.device("cpu")
KEY = derive_key("native")
CASES = [(kind, size) for kind in (*KINDS, "limits") for size in SIZES]

pytestmark = pytest.mark.skipif(not native.runnable_builds(), reason="no C kernels were built here")


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def numbers(request):
    return drawn(*request.param)


# noise and bits


@pytest.mark.parametrize("count", [1, 2, 511, 512, 513, 10_001])
def test_noise_is_the_same(library, count):
    for key in (KEY, derive_key(1), derive_key("x", 7)):
        assert alike(calls.noise16(library, key, count, CPU), reference.noise16(key, count, CPU))


@pytest.mark.parametrize("bits", [1, 2, 3, 5, 8, 11, 20, 24, 25, 31, 40, 56])
def test_numbers_are_packed_and_unpacked_the_same(library, bits):
    for count in (1, 7, 8, 9, 1000):
        values = torch.randint(0, 1 << bits, (count,), generator=torch.Generator().manual_seed(count))
        packed = codes.pack(values, bits)
        assert alike(calls.pack(library, values, bits), packed)
        assert calls.unpack(library, packed, count, bits).tolist() == values.tolist()
        if bits > 1:
            assert alike(calls.unpack(library, packed, count, bits), codes.unpack(packed, count, bits))


# signs


def test_signs_and_mean_magnitudes_are_the_same(library, numbers):
    signs, scale = codes.sign_encode(numbers)
    assert alike(calls.sign_encode(library, numbers), (signs, scale))
    assert alike(calls.mean_magnitude(library, numbers), scale) and alike(calls.pack_signs(library, numbers), signs)
    scale = scale.reshape(1)
    count = numbers.numel()
    assert alike(calls.sign_decode(library, signs, scale, count), codes.sign_decode(signs, scale, count))


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_means_of_signs_are_the_same(library, ranks):
    for kind in ("gaussian", "tiny", "limits"):
        for size in (7, 5000):
            sent = [codes.sign_encode(drawn(kind, size, seed)) for seed in range(ranks)]
            signs, scales = [s for s, _ in sent], [scale.reshape(1) for _, scale in sent]
            assert alike(calls.sign_mean(library, None, signs, scales, size), codes.sign_mean(signs, scales, size))


# QSGD


@pytest.mark.parametrize(("bits", "block"), [(4, 512), (2, 33), (3, 1), (5, 7), (8, 100), (4, 5000), (7, 10**9)])
def test_levels_are_the_same(library, numbers, bits, block):
    count = numbers.numel()
    packed, norms = codes.qsgd_encode(numbers, bits, block, KEY)
    assert alike(calls.qsgd_encode(library, numbers, bits, block, KEY), (packed, norms))
    back = codes.qsgd_decode(packed, norms, count, bits, block)
    assert alike(calls.qsgd_decode(library, packed, norms, count, bits, block), back)


@pytest.mark.parametrize("bits", range(2, 9))
def test_levels_of_all_widths_are_the_same(library, bits):
    numbers = drawn("heavy tails", 9000)
    norms = codes.block_peaks(numbers, 256) * 1.25
    assert alike(calls.block_peaks(library, numbers, 256), codes.block_peaks(numbers, 256))
    for given in (None, norms):
        packed, used = codes.qsgd_encode(numbers, bits, 256, KEY, given)
        assert alike(calls.qsgd_encode(library, numbers, bits, 256, KEY, given), (packed, used))
        back = codes.qsgd_decode(packed, used, 9000, bits, 256)
        assert alike(calls.qsgd_decode(library, packed, used, 9000, bits, 256), back)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_means_of_levels_are_the_same(library, ranks):
    for kind, size, bits, block in (("gaussian", 5000, 4, 512), ("limits", 7, 3, 3), ("heavy tails", 9001, 5, 100)):
        sent = [codes.qsgd_encode(drawn(kind, size, seed), bits, block, KEY) for seed in range(ranks)]
        packed, norms = [p for p, _ in sent], [n for _, n in sent]
        expected = codes.qsgd_mean(packed, norms, size, bits, block)
        assert alike(calls.qsgd_mean(library, None, packed, norms, size, bits, block), expected)


# natural


def test_exponents_are_the_same(library, numbers):
    assert alike(
        calls_natural.natural_encode(library, numbers, KEY, 0, 254), codes.natural_encode(numbers, KEY, 0, 254)
    )
    signed = codes.natural_encode_signed(numbers, KEY, 16)
    assert alike(calls_natural.natural_encode_signed(library, numbers, KEY, 16), signed)
    assert alike(calls_natural.natural_decode_signed(library, signed, 16), codes.natural_decode_signed(signed, 16))


def test_every_code_of_natural_is_read_the_same(library):
    every = torch.arange(256).to(torch.uint8)
    assert alike(calls_natural.natural_decode_signed(library, every, 16), codes.natural_decode_signed(every, 16))


def test_what_powers_of_two_leave_is_the_same(library, numbers):
    before = drawn("limits", numbers.numel(), seed=3) * 0.7
    expected = codes.natural_feedback(numbers, before, KEY, 16)
    assert alike(calls_natural.natural_feedback(library, numbers, before, KEY, 16), expected)
    expected = codes.exponents_feedback(numbers, before, KEY, 254)
    assert alike(calls_natural.exponents_feedback(library, numbers, before, KEY, 254), expected)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_means_of_powers_of_two_are_the_same(library, ranks):
    for kind, size in (("gaussian", 5000), ("limits", 7), ("heavy tails", 9001)):
        tensors = [drawn(kind, size, seed) for seed in range(ranks)]
        signed = [codes.natural_encode_signed(tensor, KEY, 16) for tensor in tensors]
        assert alike(calls_natural.natural_mean(library, None, signed, 16), codes.natural_mean(signed, 16))
        planes = [codes.natural_encode(x, KEY, 0, 254) for x in tensors], [codes.pack_signs(x) for x in tensors]
        assert alike(calls_natural.exponents_mean(library, None, *planes), codes.exponents_mean(*planes))


# top-k and sparse vectors


def test_the_largest_are_the_same(library, numbers):
    count = numbers.numel()
    for k in {1, 2, count // 100, count // 9, count // 2, count - 1, count} - {0, -1}:
        if k <= count:
            assert alike(calls.largest_magnitudes(library, numbers, k), codes.largest_magnitudes(numbers, k))


@pytest.mark.parametrize("seed", range(5))
def test_the_largest_are_the_same_where_a_sample_deceives(library, seed):
    """Periodic and sorted tensors, and all that is large in one place."""
    x = torch.randn(300_000, generator=torch.Generator().manual_seed(seed))
    x[:: 64 + seed] *= 100
    patterns = (
        x,
        x.sort().values,
        x.abs().sort(descending=True).values,
        (x * 4).round(),
        torch.cat((x[:1000] * 99, x)),
    )
    for pattern in patterns:
        for k in (1, 300, 3000, 30_000):
            assert alike(calls.largest_magnitudes(library, pattern, k), codes.largest_magnitudes(pattern, k))


def test_positions_outside_are_refused_and_nothing_is_written_there(library):
    for bad in (-1, 10, 1 << 40, -(1 << 62)):
        with pytest.raises(IndexError, match="1 positions are not below 10"):
            calls.scatter(library, torch.ones(2), torch.tensor([3, bad]), 10)


def test_values_are_scattered_the_same(library):
    values, places = drawn("limits", 50), reference.distinct_positions(KEY, 50, 777, CPU)
    assert alike(calls.scatter(library, values, places, 777), codes.scatter(values, places, 777))


# residuals


def test_targets_and_what_is_left_of_them_are_the_same(library, numbers):
    before = drawn("limits", numbers.numel(), seed=3) * 0.7
    assert alike(calls.add_saturated(library, numbers, before), codes.add_saturated(numbers, before))
    assert alike(calls.sign_feedback(library, numbers, before), codes.sign_feedback(numbers, before))
    for bits, block in ((4, 512), (2, 33), (8, 5000)):
        expected = codes.qsgd_feedback(numbers, before, bits, block, KEY)
        assert alike(calls.qsgd_feedback(library, numbers, before, bits, block, KEY), expected)


def test_what_overflows_is_the_largest_number_and_stays_finite(library):
    huge = torch.tensor([3e38, -3e38, 1.0, float("inf"), float("nan"), float("-inf")])
    for kernel in (calls.add_saturated(library, huge, huge), codes.add_saturated(huge, huge)):
        assert kernel.tolist()[:4] == [3.4028234663852886e38, -3.4028234663852886e38, 2.0, 3.4028234663852886e38]
        assert kernel.tolist()[4:] == [0.0, -3.4028234663852886e38]


# the door


def test_other_types_devices_and_layouts_go_to_torch():
    for wide in (torch.randn(100, dtype=torch.float64), torch.randn(10, 20)[:, ::2].flatten().double()):
        assert dispatch.largest_magnitudes(wide, 5).tolist() == codes.largest_magnitudes(wide, 5).tolist()
    every_other = torch.randn(200)[::2]
    assert alike(dispatch.sign_encode(every_other), codes.sign_encode(every_other))
    empty = torch.zeros(0)
    assert alike(dispatch.qsgd_encode(empty, 4, 512, KEY), codes.qsgd_encode(empty, 4, 512, KEY))
    assert alike(dispatch.sign_encode(empty), codes.sign_encode(empty))
    assert alike(dispatch.noise16(KEY, 0, CPU), reference.noise16(KEY, 0, CPU))


def test_c_is_never_given_too_little(library):
    short = torch.zeros(3, dtype=torch.uint8)
    for call in (
        lambda: calls.qsgd_decode(library, short, torch.ones(1), 100, 4, 512),
        lambda: calls.sign_decode(library, short, torch.ones(1), 100),
        lambda: calls.unpack(library, short, 100, 4),
        lambda: calls.add_saturated(library, torch.ones(5), torch.ones(4)),
        lambda: calls.scatter(library, torch.ones(5), torch.zeros(4, dtype=torch.int64), 10),
    ):
        with pytest.raises(TypeError, match="C kernels"):
            call()


def test_numbers_are_taken_and_subtracted_the_same(library, numbers):
    positions = codes.largest_magnitudes(numbers, (numbers.numel() + 2) // 3)
    kept = codes.take(numbers, positions)
    assert alike(calls.take(library, numbers, positions), kept)
    ours, theirs = numbers.clone(), numbers.clone()
    calls.subtract_at(library, ours, positions, -kept)
    codes.subtract_at(theirs, positions, -kept)
    assert alike(ours, theirs)
    for bad in (-1, numbers.numel()):
        with pytest.raises(IndexError, match="1 positions are not below"):
            calls.take(library, numbers, torch.tensor([0, bad]))
        with pytest.raises(IndexError, match="1 positions are not below"):
            calls.subtract_at(library, ours, torch.tensor([0, bad]), torch.ones(2))


def test_planes_of_exponents_and_signs_are_read_the_same(library, numbers):
    exponents, signs = codes.natural_encode(numbers, KEY, 0, 254), codes.pack_signs(numbers)
    assert alike(calls_natural.exponents_decode(library, exponents, signs), codes.exponents_decode(exponents, signs))


# matrices of low rank


@pytest.mark.parametrize(
    ("rank", "rows", "columns"), [(1, 1, 1), (2, 3, 9), (4, 30, 50), (3, 2, 1025), (5, 4, 33), (6, 2, 7), (8, 7, 3000)]
)
@pytest.mark.parametrize("kind", ["gaussian", "heavy tails", "limits"])
def test_products_of_factors_are_the_same(library, kind, rank, rows, columns):
    left, right = drawn(kind, rank * rows).view(rank, rows), drawn(kind, rank * columns, seed=3).view(rank, columns)
    assert alike(calls_matrices.low_rank(library, None, left, right), codes.low_rank(left, right))
    ours, theirs = (drawn(kind, rows * columns, seed=1).view(rows, columns) for _ in range(2))
    calls_matrices.subtract_low_rank(library, ours, left, right)
    codes.subtract_low_rank(theirs, left, right)
    assert alike(ours, theirs) and bool(ours.isfinite().all())


@pytest.mark.parametrize(
    ("rank", "rows", "columns"), [(1, 1, 1), (2, 3, 9), (4, 30, 50), (3, 5, 8200), (5, 4, 33), (6, 2, 17), (8, 7, 3000)]
)
@pytest.mark.parametrize("kind", ["gaussian", "heavy tails"])
def test_products_that_are_sent_are_right_up_to_rounding(library, kind, rank, rows, columns):
    matrix, other = (drawn(kind, rows * columns, seed=seed).view(rows, columns) for seed in (1, 2))
    right, left = drawn(kind, rank * columns, seed=3).view(rank, columns), drawn(kind, rank * rows).view(rank, rows)
    target, seen = calls_matrices.add_and_project(library, matrix, other, right)
    assert alike(target, codes.add_saturated(matrix, other))
    close(seen, right, target.T)
    close(calls_matrices.combine_rows(library, left, target), left, target)


def close(product, left, right):
    """As near as sums of so many float32 can be trusted to be, whatever their order."""
    exact, size = left.double() @ right.double(), left.double().abs() @ right.double().abs()
    assert bool(((product - exact).abs() <= 2.0**-23 * (left.shape[1] + 2) * size).all())


@pytest.mark.parametrize(("count", "length"), [(1, 1), (4, 3), (4, 513), (7, 1000)])
@pytest.mark.parametrize("kind", ["gaussian", "heavy tails", "limits", "tiny"])
def test_bases_are_the_same(library, kind, count, length):
    rows = drawn(kind, count * length).view(count, length)
    for given in (rows, rows.double(), torch.cat((rows, rows[:1] * 2, torch.zeros(1, length)))):
        ours, theirs = calls_matrices.orthonormalize(library, given), matrices.orthonormalize(given)
        assert torch.equal(ours.view(torch.int64), theirs.view(torch.int64))
