"""SPEC 6.5: what `solve_knapsack` promises, against brute force and over drawn tables."""

import itertools

import pytest
import torch

from thinwire.controllers.knapsack import pareto_front, solve_exact, solve_knapsack, solve_lagrangian, sum_chosen


def tables(layers: int, options: int, seed: int, kind: str = "any"):
    """Errors that fall while costs rise, as they do along the options of one method; or any."""
    draw = torch.Generator().manual_seed(seed)
    errors = torch.rand(layers, options, generator=draw, dtype=torch.float64) * 10 ** torch.randint(
        -3, 3, (layers, 1), generator=draw
    )
    costs = torch.randint(1, 10000, (layers, options), generator=draw).double()
    if kind == "monotone":
        errors, costs = errors.sort(dim=1, descending=True).values, costs.sort(dim=1).values
    return list(errors), list(costs)


def brute_force(errors, costs, budget):
    best = None
    for options in itertools.product(*(range(len(row)) for row in errors)):
        if sum_chosen(errors, options) <= budget and (
            best is None or sum_chosen(costs, options) < sum_chosen(costs, best)
        ):
            best = options
    return best


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", ["any", "monotone"])
def test_the_exact_form_is_the_optimum_up_to_its_steps(seed, kind):
    errors, costs = tables(4, 5, seed, kind)
    defaults = [seed % 5] * 4
    budget = sum_chosen(errors, defaults)
    fine = sum_chosen(costs, solve_knapsack(errors, costs, defaults, error_levels=1_000_000))
    best = sum_chosen(costs, brute_force(errors, costs, budget))
    assert fine >= best
    tight = brute_force(errors, costs, budget * (1 - 4e-6))  # four errors may be rounded up by a step each
    assert fine <= (sum_chosen(costs, defaults) if tight is None else sum_chosen(costs, tight))


@pytest.mark.parametrize("solver", ["exact", "lagrangian"])
@pytest.mark.parametrize("seed", range(30))
def test_true_errors_keep_within_the_budget_and_it_never_costs_more_than_the_reference(seed, solver):
    errors, costs = tables(1 + seed % 9, 1 + seed % 7, seed)
    defaults = [(seed * at) % len(errors[0]) for at in range(len(errors))]
    for alpha in (1.0, 1.5):
        chosen = solve_knapsack(errors, costs, defaults, alpha, error_levels=100, solver=solver)
        assert sum_chosen(errors, chosen) <= alpha * sum_chosen(errors, defaults) * (1 + 1e-12)
        assert sum_chosen(costs, chosen) <= sum_chosen(costs, defaults)


@pytest.mark.parametrize("seed", range(10))
def test_the_lagrangian_form_is_feasible_and_near_the_optimum_where_layers_are_many(seed):
    errors, costs = tables(40, 8, seed, "monotone")
    budget = sum_chosen(errors, [3] * 40)
    table = torch.stack(errors), torch.stack(costs)
    quick, best = solve_lagrangian(*table, budget), solve_exact(*table, budget, 100_000)
    assert sum_chosen(errors, quick) <= budget
    largest_step = max(float(row.max() - row.min()) for row in costs)
    assert (
        sum_chosen(costs, best) <= sum_chosen(costs, quick) <= sum_chosen(costs, best) + largest_step
    )  # one layer from the hull


def test_more_error_never_costs_more():
    errors, costs = tables(6, 6, 3, "monotone")
    spent = [
        sum_chosen(costs, solve_knapsack(errors, costs, [2] * 6, alpha, error_levels=5000))
        for alpha in (0.5, 0.8, 1, 1.2, 2, 5)
    ]
    assert spent == sorted(spent, reverse=True)


def test_the_order_of_layers_does_not_matter():
    errors, costs = tables(7, 5, 8)
    order = [3, 1, 6, 0, 2, 5, 4]
    straight = solve_knapsack(errors, costs, [2] * 7)
    turned = solve_knapsack([errors[i] for i in order], [costs[i] for i in order], [2] * 7)
    assert sum_chosen(costs, straight) == sum_chosen([costs[i] for i in order], turned)


def test_more_levels_never_cost_more_by_more_than_rounding():
    errors, costs = tables(8, 6, 5, "monotone")
    spent = {
        levels: sum_chosen(costs, solve_knapsack(errors, costs, [2] * 8, error_levels=levels))
        for levels in (10, 100, 1000, 10000)
    }
    assert spent[10000] <= spent[1000] <= spent[100] * 1.001 and spent[10000] <= spent[10]


@pytest.mark.parametrize("dead", [0.0, float("nan")])
def test_a_layer_without_a_gradient_gets_the_cheapest(dead):
    errors, costs = tables(3, 4, 1, "monotone")
    errors[1] = torch.full((4,), dead, dtype=torch.float64)
    assert solve_knapsack(errors, costs, [2, 2, 2])[1] == int(costs[1].argmin())


def test_all_layers_without_a_gradient_get_the_cheapest():
    zeros, costs = [torch.zeros(4).double()] * 3, tables(3, 4, 1)[1]
    assert solve_knapsack(zeros, costs, [2, 2, 2]) == [int(row.argmin()) for row in costs]


def test_one_layer_beyond_the_budget_is_not_taken_for_feasible():
    errors, costs = [torch.tensor([5.0, 1.0])], [torch.tensor([1.0, 100.0])]
    assert solve_knapsack(errors, costs, [1]) == [1]
    assert solve_knapsack(errors, costs, [1], alpha=0.5) == [1]  # nothing is within: the least error


@pytest.mark.parametrize("solver", ["exact", "lagrangian"])
@pytest.mark.parametrize("seed", range(10))
def test_options_that_another_beats_and_rows_of_other_lengths_change_nothing(seed, solver):
    errors, costs = tables(6, 5, seed)
    for at in range(0, 6, 2):  # after the others, so that their numbers stay
        errors[at] = torch.cat([errors[at], errors[at][:2] + 1.0])
        costs[at] = torch.cat([costs[at], costs[at][:2] + 1.0])
    chosen = solve_knapsack(errors, costs, [2] * 6, 1.2, solver=solver)
    assert chosen == solve_knapsack(
        [row[:5] for row in errors], [row[:5] for row in costs], [2] * 6, 1.2, solver=solver
    )


def test_a_default_of_infinite_error_allows_all_options():
    errors, costs = tables(3, 4, 2)
    errors[1][2] = torch.inf
    assert solve_knapsack(errors, costs, [2, 2, 2]) == [int(row.argmin()) for row in costs]


def test_no_layer_is_no_choice():
    assert solve_knapsack([], [], []) == []


def front(errors, costs):
    order, is_kept = pareto_front(errors[None], costs[None])
    return order[is_kept].tolist()


def test_candidates_that_another_beats_in_both_are_left_out():
    errors, costs = torch.tensor([3.0, 2.0, 2.0, 1.0, 4.0]), torch.tensor([1.0, 2.0, 2.0, 5.0, 3.0])
    assert front(errors, costs) == [0, 1, 3]
    for seed in range(20):
        (errors,), (costs,) = tables(1, 9, seed)
        kept = front(errors, costs)
        for at in range(9):
            beaten = any(errors[k] <= errors[at] and costs[k] <= costs[at] for k in kept)
            assert beaten and (
                at not in kept or all(k == at or errors[k] > errors[at] or costs[k] > costs[at] for k in kept)
            )
