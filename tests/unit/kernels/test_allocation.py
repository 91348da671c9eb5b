"""Dynamic programming finds what trying everything finds, and C what the torch expression does."""

from itertools import product

import pytest
import torch

from thinwire.kernels import allocation, native
from thinwire.kernels.native import calls_allocation


def drawn(seed, layers, candidates, budget, largest=None, max_cost=30):
    generator = torch.Generator().manual_seed(seed)
    costs = torch.randint(0, max_cost, (layers, candidates), generator=generator).double()
    return costs, torch.randint(0, (largest or budget + 1) + 1, (layers, candidates), generator=generator)


def by_trying_all(costs, errors, budget):
    """The least cost, then the least error, then the first options from the last layer on; [] if none is within."""
    layers, candidates = costs.shape
    found = []
    for choice in product(range(candidates), repeat=layers):
        picked = torch.tensor(choice, dtype=torch.int64)[:, None]
        error = int(errors.gather(1, picked).sum())
        if error <= budget:
            found.append((float(costs.gather(1, picked).sum()), error, choice[::-1]))
    return list(min(found)[2][::-1]) if found else []


def by_full_tables(costs, errors, budget):
    """The dynamic program over all options and all sums of errors."""
    tables = torch.full((len(costs) + 1, budget + 1), torch.inf, dtype=torch.float64)
    tables[0, 0] = 0
    for before, after, row, units in zip(tables, tables[1:], costs, errors, strict=False):
        for cost, error in zip(row.tolist(), units.tolist(), strict=True):
            if error <= budget:
                after[error:] = torch.minimum(after[error:], before[: budget + 1 - error] + cost)
    return allocation.trace_back(tables, costs, errors).tolist() if bool(tables[-1].isfinite().any()) else []


@pytest.mark.parametrize("seed", range(60))
def test_it_chooses_what_trying_everything_chooses(seed):
    layers, candidates, budget = 1 + seed % 4, 1 + seed % 5, 3 + seed % 11
    costs, errors = drawn(seed, layers, candidates, budget, max_cost=(3, 30)[seed % 2])  # many of equal cost, or few
    choice = allocation.solve_allocation(costs, errors, budget)
    assert choice.tolist() == by_trying_all(costs, errors, budget)


@pytest.mark.parametrize("seed", range(20))
def test_options_and_sums_that_are_left_out_change_no_choice(seed):
    budget = (31, 32, 33, 700)[seed % 4]  # around a span of the C kernel
    costs, errors = drawn(seed, 12, 9, budget, (budget // 3, budget // 12)[seed % 2], max_cost=(4, 4000)[seed % 3 == 0])
    errors += seed % 3
    choice = allocation.solve_allocation(costs, errors, budget).tolist()
    assert choice == by_full_tables(costs, errors, budget)
    assert len(choice) in (0, 12)


def test_an_option_stays_unless_another_beats_it():
    costs, errors = torch.tensor([[5.0, 5.0, 4.0, 4.0, 9.0, 1.0]]).double(), torch.tensor([[3, 3, 4, 3, 2, 99]])
    assert allocation.exclude_dominated(costs, errors, 10).tolist() == [[11, 11, 11, 3, 2, 11]]
    twice = costs[:, [0, 0]], errors[:, [0, 0]]
    assert allocation.exclude_dominated(*twice, 10).tolist() == [[3, 11]]  # of equals the first


def test_no_layers_choose_nothing_and_bad_input_is_refused():
    nothing = torch.zeros(0, 3)
    assert allocation.solve_allocation(nothing.double(), nothing.long(), 5).numel() == 0
    with pytest.raises(ValueError, match=r"must both be \(layers, options\)"):
        allocation.solve_allocation(torch.zeros(2, 3).double(), torch.zeros(3, 2).long(), 5)
    for bad in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="must not be negative"):
            allocation.solve_allocation(torch.full((1, 1), bad).double(), torch.zeros(1, 1).long(), 5)


@pytest.mark.skipif(not native.runnable_builds(), reason="no C kernels were built here")
@pytest.mark.parametrize(("layers", "candidates", "budget"), [(1, 1, 0), (3, 4, 7), (20, 9, 1000), (7, 33, 5000)])
@pytest.mark.parametrize("share", [1, 2, 10])  # errors up to the budget, or so that many layers fit in
def test_c_chooses_the_same(library, layers, candidates, budget, share):
    for seed in range(6):
        costs, errors = drawn(seed, layers, candidates, budget, budget // share + 1, max_cost=(5, 10_000)[seed % 2])
        ours, theirs = (
            calls_allocation.solve_allocation(library, costs, errors, budget),
            allocation.solve_allocation(costs, errors, budget),
        )
        assert ours.tolist() == theirs.tolist()
