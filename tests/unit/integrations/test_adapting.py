"""Compositions that choose per layer, on real processes and through `attach` and `local`."""

import pytest

from helpers import adapting_jobs as jobs

MATRICES = ["first.weight", "second.weight", "third.weight"]  # last.weight has 160 elements: dense


def equal_on_all_ranks(results):
    assert all(result == results[0] for result in results)
    return results[0]


@pytest.mark.parametrize("composition", [jobs.ADAPTIVE, jobs.MIXED])
def test_all_ranks_have_the_same_plan_from_the_same_step_and_nothing_is_lost(pool, composition):
    results = pool.run(2, jobs.adapt, composition)
    for each in results:
        assert each["in_force"] == results[0]["in_force"]
        assert each["history"] == results[0]["history"]
        assert each["weights"] == results[0]["weights"]
        assert each["lost"] < 1e-5
        assert each["choices"] == MATRICES  # small layers and vectors travel dense
        assert each["decisions"] == 3
        assert each["lr"] == 0.1
    steps = [step for step, _ in results[0]["history"]]
    assert steps and set(steps) <= {4, 7, 10}
    changes = [i for i in range(1, 12) if results[0]["in_force"][i] != results[0]["in_force"][i - 1]]
    assert changes == steps


def test_the_report_tells_what_adapting_cost_and_what_is_in_force(pool):
    for each in pool.run(2, jobs.adapt, jobs.ADAPTIVE):
        line = next(line for line in each["report"].splitlines() if "adapting" in line)
        assert "3 decisions" in line and "ms a step" in line and "kB of plans" in line
        assert "× topk(density=" in each["report"]
        assert 0 < each["share"] < 1


def test_buckets_do_not_change_what_is_chosen(pool):
    few, many = (pool.run(2, jobs.adapt, jobs.ADAPTIVE, 12, {"bucket_cap_mb": mb})[0] for mb in (100.0, 0.002))
    assert few["history"] == many["history"]
    assert few["weights"] == many["weights"]


def test_time_is_measured_through_buckets_that_ddp_rebuilds(pool):
    results = pool.run(2, jobs.delayed, jobs.BY_TIME, 40)
    plans, told, _ = zip(*results, strict=True)
    assert plans[0] == plans[1]
    keys = ("objective", "because", "r2", "seconds_per_mb", "decisions")
    assert [told[0][key] for key in keys] == [told[1][key] for key in keys]
    assert told[0]["because"] != "still measuring" and told[0]["decisions"] == 2
    assert len(told[0]["seconds_per_mb"]) > 1


def test_delays_of_single_ranks_bring_no_disagreement(pool):
    text = "ef(adapt(topk(density=0.05), controller=lgreco(start=20, every=10, window=3, objective='time', calibration_steps=20)))"
    results = pool.run(3, jobs.delayed, text, 70, 1, within_s=120.0)
    plans, told, weights = zip(*results, strict=True)
    assert all(plan == plans[0] for plan in plans) and len(set(weights)) == 1
    assert told[0]["decisions"] == 5


def test_an_adaptive_composition_and_a_fixed_one_follow_each_other(pool):
    carried, changes, _ = equal_on_all_ranks(pool.run(2, jobs.change_back_and_forth))
    assert all(carried)
    assert changes[0] > 0 and changes[1] == 0 and changes[2] > 0 and changes[3] == 0


@pytest.mark.parametrize(("composition", "steps", "stop"), [(jobs.ADAPTIVE, 12, 6), (jobs.MIXED, 12, 7)])
def test_a_resumed_run_has_the_plans_and_the_history_to_the_last_bit(pool, composition, steps, stop):
    for same, history, _ in pool.run(2, jobs.resume, composition, steps, stop):
        assert same and history


@pytest.mark.parametrize("stop", [25, 40])
def test_a_run_by_time_that_is_resumed_has_the_same_rates_and_plans(pool, stop):
    """After measuring; before that, DDP's first step has other buckets, and what was measured of these is forgotten.

    Clocks are made up: no run meets the same.
    """
    for same, history, (objective, because, rates) in pool.run(2, jobs.resume_by_time, stop):
        assert same and history
        assert (objective, because) == ("time", "fitted") and len(rates) > 1


def test_a_world_of_another_size_goes_on_with_plan_and_history(pool):
    state, plan, history = pool.run(2, jobs.save)[0]
    results = pool.run(3, jobs.take_over, state)
    first, later, *_ = equal_on_all_ranks(results)
    assert first == (plan, history)
    assert later[: len(history)] == history and later[-1][0] > history[-1][0]


def test_a_world_of_another_size_measures_time_anew(pool):
    state, plan, history = pool.run(2, jobs.save, 38, jobs.BY_TIME)[0]
    first, later, _, because = equal_on_all_ranks(pool.run(3, jobs.take_over, state, 36, jobs.BY_TIME))
    assert first == (plan, history)
    assert because[0] == "still measuring" and because[1] != "still measuring"
    drawn = [step for step, _ in later if 38 <= step < 38 + 20]
    assert len(drawn) > 10  # plans of a calibration


@pytest.mark.parametrize("by", ["accordion(every=3)", "kmeans(start=3, every=3, window=2, alpha=100.0, clusters=1)"])
def test_rivals_choose_through_ddp_as_well(pool, by):
    results = pool.run(2, jobs.adapt, f"ef(adapt(topk(density=0.05), controller={by}))")
    for each in results:
        assert each["history"] == results[0]["history"] and each["weights"] == results[0]["weights"]
        assert each["lost"] < 1e-5 and each["decisions"] == 3
    assert results[0]["history"]


def test_all_layers_as_one_and_each_by_itself_follow_each_other(pool):
    carried, waiting, skipped, _ = equal_on_all_ranks(pool.run(2, jobs.change_to_whole_and_back))
    assert carried == [True, True] and waiting == [3, 0] and skipped == 0


def test_an_overflow_of_the_loss_scale_is_not_looked_at(pool):
    history, _, finite = equal_on_all_ranks(pool.run(2, jobs.scaled))
    assert finite and history


def test_nothing_is_decided_while_gradients_travel_dense(pool):
    begun, history, _ = equal_on_all_ranks(pool.run(2, jobs.pause_and_warm_up))
    assert begun == [0, 0]
    assert [step for step, _ in history] == [16]  # the fourth exchange after six and six dense steps


def test_a_wire_knows_the_largest_learning_rate_of_its_parameters(pool):
    told = equal_on_all_ranks(pool.run(2, jobs.learning_rates))
    assert told == [(0.03, None), (0.01, 0.03), (0.01, 0.01)]


def test_rounds_of_local_steps_adapt_too(pool):
    text = "ef(adapt(topk(density=0.05), controller=lgreco(start=4, every=4, window=2)))"
    for dense_below, layers in ((1024, MATRICES), (0, [*MATRICES, "last.weight"])):
        results = pool.run(2, jobs.locally, text, dense_below)
        assert all(result[:2] == results[0][:2] for result in results)
        history, chosen, lr, report = results[0]
        assert history and sorted(layers) == chosen and lr == 0.05
        assert "adapting" in report
