"""Every build of the C kernels gives the bits of the torch expressions: given levels, and evenly spaced ones."""

import math

import pytest
import torch

from helpers.cases import KINDS
from helpers.same_bits import alike, drawn
from thinwire.core import DecodeError, derive_key
from thinwire.kernels import chunked, codes
from thinwire.kernels.native import calls, calls_uniform

SIZES = (1, 7, 33, 4096, 4097, 100_003)
KEY = derive_key("native levels")
CASES = [(kind, size) for kind in (*KINDS, "limits") for size in SIZES]


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def numbers(request):
    return drawn(*request.param)


def test_those_that_reach_a_level_are_the_same(library, numbers):
    """Also at levels that float32 cannot hold, and at those that some number meets exactly."""
    found = numbers.abs().median().item(), numbers.abs().max().item()
    for level in (0.0, -1.0, 1e-50, 1e-45, 0.01, 0.1, 1.0, *found, 3.4028235e38, 1e39, math.inf, math.nan):
        expected = codes.positions_reaching(numbers, level)
        assert alike(calls.positions_reaching(library, numbers, level), expected), level
        assert alike(chunked.positions_reaching(numbers, level), expected), level
        assert calls.count_below(library, numbers, level) == codes.count_below(numbers, level), level


def test_what_is_no_number_reaches_nothing(library):
    some = torch.tensor([math.nan, 1.0, -math.inf, -math.nan, 0.0, math.inf]).repeat(20)
    for level in (0.0, 1.0, math.inf):
        expected = codes.positions_reaching(some, level)
        assert alike(calls.positions_reaching(library, some, level), expected) and alike(
            chunked.positions_reaching(some, level), expected
        )
        assert calls.count_below(library, some, level) == codes.count_below(some, level)


@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize(("bits", "block"), [(8, 512), (2, 33), (3, 1), (5, 7), (4, 5000), (7, 10**9)])
def test_steps_and_what_they_leave_are_the_same(library, numbers, bits, block, stochastic):
    count = numbers.numel()
    packed, peaks = codes.uniform_encode(numbers, bits, block, stochastic, KEY)
    assert alike(calls_uniform.uniform_encode(library, numbers, bits, block, stochastic, KEY), (packed, peaks))
    back = codes.uniform_decode(packed, peaks, count, bits, block)
    assert alike(calls_uniform.uniform_decode(library, packed, peaks, count, bits, block), back)
    before = drawn("limits", count, seed=3) * 0.7
    expected = codes.uniform_feedback(numbers, before, bits, block, stochastic, KEY)
    assert alike(calls_uniform.uniform_feedback(library, numbers, before, bits, block, stochastic, KEY), expected)


@pytest.mark.parametrize("bits", range(2, 9))
def test_halves_go_to_the_even_step(library, bits):
    levels = (1 << (bits - 1)) - 1
    halves = torch.arange(-2 * levels, 2 * levels + 1) / 2.0
    numbers = halves.repeat(9)
    for stochastic in (False, True):
        packed, peaks = codes.uniform_encode(numbers, bits, halves.numel(), stochastic, KEY)
        ours = calls_uniform.uniform_encode(library, numbers, bits, halves.numel(), stochastic, KEY)
        assert alike(ours, (packed, peaks))
        if not stochastic:
            steps = codes.unpack(packed, numbers.numel(), bits)[: halves.numel()] - levels
            assert steps.tolist() == [round(half) for half in halves.tolist()]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_means_of_steps_are_the_same(library, ranks):
    for kind, size, bits, block in (("gaussian", 5000, 8, 512), ("limits", 7, 3, 3), ("heavy tails", 9001, 5, 100)):
        sent = [codes.uniform_encode(drawn(kind, size, seed), bits, block, False, KEY) for seed in range(ranks)]
        packed, peaks = [p for p, _ in sent], [s for _, s in sent]
        expected = codes.uniform_mean(packed, peaks, size, bits, block)
        assert alike(calls_uniform.uniform_mean(library, None, packed, peaks, size, bits, block), expected)


@pytest.mark.parametrize("bits", range(2, 9))
def test_the_code_that_is_never_sent_is_refused_wherever_it_stands(library, bits):
    for count in (1, 9, 5000):
        good = torch.full((count,), (1 << bits) - 2)
        peaks = torch.ones(-(-count // 512))
        assert calls_uniform.uniform_decode(library, codes.pack(good, bits), peaks, count, bits, 512).eq(1).all()
        for at in {0, count // 2, count - 1}:
            packed = codes.pack(good.index_fill(0, torch.tensor([at]), (1 << bits) - 1), bits)
            for decode in (codes.uniform_decode, lambda *args: calls_uniform.uniform_decode(library, *args)):
                with pytest.raises(DecodeError, match="is never sent"):
                    decode(packed, peaks, count, bits, 512)
            for mean in (codes.uniform_mean, lambda *args: calls_uniform.uniform_mean(library, None, *args)):
                with pytest.raises(DecodeError, match="is never sent"):
                    mean([codes.pack(good, bits), packed], [peaks, peaks], count, bits, 512)


def test_c_is_never_given_too_little(library):
    short = torch.zeros(3, dtype=torch.uint8)
    for call in (
        lambda: calls_uniform.uniform_decode(library, short, torch.ones(1), 100, 4, 512),
        lambda: calls_uniform.uniform_mean(library, None, [short], [torch.ones(1)], 100, 4, 512),
        lambda: calls_uniform.uniform_feedback(library, torch.ones(5), torch.ones(4), 4, 512, False, KEY),
    ):
        with pytest.raises(TypeError, match="C kernels"):
            call()
