"""Rates out of sizes and seconds."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire.controllers.least_squares import fit_rates, r_squared


def drawn_sizes(seed, samples=40, columns=3):
    generator = torch.Generator().manual_seed(seed)
    return 1e6 * torch.rand(samples, columns, generator=generator, dtype=torch.float64)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 1000), st.lists(st.floats(1e-9, 1e-6), min_size=1, max_size=5), st.floats(0, 10))
def test_rates_that_made_the_seconds_are_found(seed, rates, constant):
    rates = torch.tensor(rates, dtype=torch.float64)
    sizes = drawn_sizes(seed, columns=len(rates))
    fit = fit_rates(sizes, constant + sizes @ rates)
    torch.testing.assert_close(fit.rates, rates, rtol=1e-4, atol=1e-12)
    assert abs(fit.constant - constant) < 1e-6 + 1e-6 * constant
    assert fit.r2 > 0.999


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 1000))
def test_no_rate_is_negative_whatever_was_measured(seed):
    sizes, noise = drawn_sizes(seed), torch.randn(40, generator=torch.Generator().manual_seed(seed)).double()
    fit = fit_rates(sizes, noise)
    assert (fit.rates >= 0).all()
    assert fit.r2 <= 0.5  # noise is not explained by three sizes


def test_a_column_that_would_save_time_is_left_out():
    sizes = drawn_sizes(3)
    fit = fit_rates(sizes, sizes @ torch.tensor([2e-6, -1e-6, 1e-6], dtype=torch.float64))
    assert fit.rates[1] == 0
    assert fit.rates[0] > 1.5e-6


def test_a_size_that_never_changes_has_no_rate():
    sizes = drawn_sizes(4)
    sizes[:, 2] = 5.0
    fit = fit_rates(sizes, 7e-7 * sizes[:, 0] + 1)
    assert fit.rates[2] == 0
    assert fit.r2 > 0.999


def test_nothing_to_explain_explains_nothing():
    assert r_squared(torch.ones(4).double(), torch.ones(4).double()) == 0
    assert fit_rates(torch.ones(4, 2).double(), torch.ones(4).double()).r2 == 0
    assert r_squared(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0])) == 1
