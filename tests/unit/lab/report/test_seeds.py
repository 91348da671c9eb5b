from __future__ import annotations

import math
from typing import Any

import pytest

from thinwire_lab.reporting.seeds import (
    Spread,
    average_curves,
    average_parts,
    compute_spread,
    format_seeds,
    format_spread,
    group_runs,
)


def run(**more: Any) -> dict[str, Any]:
    return {"group": "g", "label": "a", "composition": "dense()", "final": {}} | more


def test_mean_and_standard_deviation_are_those_of_a_sample() -> None:
    found = compute_spread([1.0, 2.0, 3.0, 6.0])
    assert found.mean == 3.0 and found.std == pytest.approx(math.sqrt(14 / 3))
    assert compute_spread([5.0]) == Spread(5.0, None, (5.0,))
    assert compute_spread([]) == Spread(None, None, ())


def test_equal_seeds_have_no_spread_whatever_their_bits() -> None:
    assert compute_spread([0.1, 0.1, 0.1]) == Spread(0.1, 0.0, (0.1, 0.1, 0.1))


@pytest.mark.parametrize("bad", [None, math.nan, math.inf])
def test_a_seed_that_is_not_finite_leaves_no_mean(bad: float | None) -> None:
    found = compute_spread([1.0, bad, 3.0])
    assert found.mean is None and found.values == (1.0, None, 3.0)
    assert format_spread(found, "number") == ("–", "2 of 3 finite")
    assert format_spread(found, "steps") == ("–", "2 of 3 reach it")
    assert (
        format_spread(compute_spread([bad, bad]), "number")
        == format_spread(compute_spread([bad]), "number")
        == ("–", "")
    )


@pytest.mark.parametrize(
    ("values", "unit", "mean", "more"),
    [
        ([0.5, 0.5], "number", "0.5000", ""),
        ([0.5], "number", "0.5000", ""),
        ([0.5, 0.7], "number", "0.6000", "± 0.14"),
        ([0.9, 0.92], "percent", "91.0 %", "± 1.4"),
        ([1.2e6, 1.3e6], "bytes", "1.25 MB", "± 0.071"),
        ([0.010, 0.012], "seconds", "11 ms", "± 1.4"),
        ([1200, 1300], "steps", "1,250", "± 71"),
        ([1e-7, 3e-7], "number", "2.000·10⁻⁷", "± 1.4·10⁻⁷"),
    ],
)
def test_means_are_written_with_their_spread_in_one_unit(values: list[float], unit: str, mean: str, more: str) -> None:
    assert format_spread(compute_spread(values), unit) == (mean, more)


def test_who_points_at_a_cell_is_told_every_seed() -> None:
    assert format_seeds(compute_spread([12_345, 12_346]), "bytes") == "2 seeds: 12,345 bytes; 12,346 bytes"
    assert format_seeds(compute_spread([12_345]), "bytes") == "12,345 bytes"
    assert format_seeds(compute_spread([0.5, None]), "number") == "2 seeds: 0.5; –"
    assert format_seeds(compute_spread([None]), "number") == ""


def test_a_mean_curve_compares_seeds_at_the_same_step_and_ends_with_the_first_of_them() -> None:
    one = {"step": [0, 10, 20], "loss": [3.0, 2.0, 1.0], "wire_bytes": [0, 5, 10]}
    two = {"step": [0, 20, 10, 15], "loss": [5.0, None, 4.0, 1.0], "wire_bytes": [0, 10, 7, 1]}
    means, stds = average_curves([run(curve=one), run(curve=two)])
    assert means == {"step": [0, 10, 20], "loss": [4.0, 3.0, None], "wire_bytes": [0, 6, 10]}
    assert stds["loss"] == [pytest.approx(math.sqrt(2))] * 2 + [None]
    short = average_curves([run(curve=one), run(curve={"step": [0], "loss": [1.0]})])[0]
    assert short == {"step": [0], "loss": [2.0]}


def test_one_seed_is_its_own_curve_and_a_column_of_one_seed_alone_is_none() -> None:
    assert average_curves([run(curve={"step": [1], "loss": [math.nan]})]) == ({"step": [1], "loss": [None]}, {})
    assert average_curves([run(curve={}), run(curve={"step": [1]})]) == ({}, {})
    assert average_curves([run()]) == ({}, {})


def test_parts_are_averaged_over_the_seeds_that_have_any() -> None:
    runs = [run(times={"compute": 2.0, "solver": 4.0}), run(times={"compute": 4.0, "encode": -1}), run(), run(times={})]
    assert average_parts(runs, "times") == {"compute": 3.0, "solver": 2.0}
    assert average_parts([run()], "times") == {}


def test_groups_and_labels_keep_the_order_of_the_file() -> None:
    runs = [run(group=group, label=label, seed=seed) for seed in (1, 2) for group in "ba" for label in "dc"]
    groups = group_runs(runs)
    assert {title: list(members) for title, members in groups.items()} == {"b": ["d", "c"], "a": ["d", "c"]}
    assert [one["seed"] for one in groups["a"]["c"]] == [1, 2]
