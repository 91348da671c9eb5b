"""The benchmark of allocation and decision measures what it says."""

from thinwire.kernels import allocation, dispatch
from thinwire_lab.bench import allocation as bench


def test_a_decision_is_measured_with_and_without_its_passes():
    found = bench.measure_decision(3, (8, 16), 0.0)
    assert found.layers == 3 and found.options == 100
    assert found.total_ms > 0 and found.errors_ms > 0
    assert found.without_passes_ms == found.total_ms - found.errors_ms
    assert found.calls_per_layer > 1


def test_the_case_has_a_solution_that_both_forms_find():
    costs, errors = bench.draw_case(12, 9, 200)
    chosen = allocation.solve_allocation(costs, errors, 200)
    assert len(chosen) == 12 and chosen.tolist() == dispatch.solve_allocation(costs, errors, 200).tolist()
    assert len(set(chosen.tolist())) > 1  # not all layers have the cheapest or the most exact option
    assert min(bench.measure_allocation(12, 9, 200, 0.0)) > 0
