"""Dynamic programming finds what trying everything finds, and C what the torch expression does."""

from itertools import product

import pytest
import torch

from thinwire.kernels import allocation, native
from thinwire.kernels.native import calls_allocation


def drawn(seed, layers, candidates, budget):
    generator = torch.Generator().manual_seed(seed)
    costs = torch.randint(0, 30, (layers, candidates), generator=generator).double()
    return costs, torch.randint(0, budget + 2, (layers, candidates), generator=generator)


def by_trying_all(costs, errors, budget):
    layers, candidates = costs.shape
    sums = []
    for choice in product(range(candidates), repeat=layers):
        picked = torch.tensor(choice, dtype=torch.int64)[:, None]
        error = int(errors.gather(1, picked).sum())
        if error <= budget and bool((errors.gather(1, picked) <= budget).all()):
            sums.append((float(costs.gather(1, picked).sum()), error))
    return min(sums) if sums else None


@pytest.mark.parametrize("seed", range(40))
def test_no_choice_is_cheaper(seed):
    layers, candidates, budget = 1 + seed % 4, 1 + seed % 5, 3 + seed % 11
    costs, errors = drawn(seed, layers, candidates, budget)
    choice = allocation.solve_allocation(costs, errors, budget)
    best = by_trying_all(costs, errors, budget)
    if best is None:
        assert choice.numel() == 0
    else:
        found = (float(costs.gather(1, choice[:, None]).sum()), int(errors.gather(1, choice[:, None]).sum()))
        assert found == best


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
def test_c_chooses_the_same(library, layers, candidates, budget):
    for seed in range(3):
        costs, errors = drawn(seed, layers, candidates, budget)
        ours, theirs = (
            calls_allocation.solve_allocation(library, costs, errors, budget),
            allocation.solve_allocation(costs, errors, budget),
        )
        assert ours.tolist() == theirs.tolist()
