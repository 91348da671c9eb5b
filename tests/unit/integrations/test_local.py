"""`local` around plain modules and torch's optimizers, on real processes."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from helpers import local_jobs as jobs
from helpers.jobs import digest
from helpers.local_training import trained

SPARSE = {"sync_every": 4, "composition": "ef(topk(density=0.1))"}
DILOCO = {"sync_every": 4, "composition": "ef(uniform(bits=4))", "outer_optimizer": "nesterov(lr=0.7, momentum=0.9)"}
STREAM = {**DILOCO, "num_fragments": 3, "fragment_sync_delay": 2, "fragment_update_alpha": 0.5}
OVERLAP = {"sync_every": 3, "payload": "weights", "overlap": True}
POST = {"sync_every": "post_local(start=3, period=4)", "composition": "dense()"}
DRIFT = {"sync_every": "drift(threshold=2.5, max_period=12)"}
GRADIENTS = {"sync_every": 1, "payload": "gradients", "composition": "ef(sign())"}
ALL = {
    "sparse": SPARSE, "diloco": DILOCO, "stream": STREAM, "overlap": OVERLAP, "post": POST, "drift": DRIFT,
    "gradients": GRADIENTS,
}  # fmt: skip


def equal_on_all_ranks(results):
    assert all(result == results[0] for result in results), results
    return results[0]


@pytest.mark.parametrize("options", ALL.values(), ids=ALL)
def test_replicas_learn_apart_and_come_together(pool, options):
    results = pool.run(3, jobs.learn, options)
    equal_on_all_ranks([digest for _, digest, *_ in results])
    for losses, _, saving, apart, after, report in results:
        assert sum(losses[-4:]) < sum(losses[:4])
        assert saving > 1.2 and after < 1e-9 and after <= apart
        assert "saving" in report and "24 steps" in report


@pytest.mark.parametrize("options", ALL.values(), ids=ALL)
@pytest.mark.parametrize("stop", (5, 6, 8))
def test_a_resumed_run_goes_on_bit_for_bit(pool, options, stop):
    assert pool.run(2, jobs.resume, options, stop) == [True, True]


def test_a_resumed_run_with_buffers_ties_and_two_precisions_does_so_too(pool):
    assert pool.run(2, jobs.resume, STREAM, 6, 13, "Normed") == [True, True]


@pytest.mark.parametrize(
    "text",
    (
        "local(sync_every=4, composition=ef(topk(density=0.1)), outer_optimizer=nesterov())",
        'local(sync_every=3, overlap=true, payload="weights")',
        "local(sync_every=4, num_fragments=3, fragment_sync_delay=2, fragment_update_alpha=0.5, composition=ef(qsgd(bits=4)))",
        "local(sync_every=drift(threshold=0.3, max_period=5))",
    ),
)
def test_processes_give_the_weights_of_lockstep(pool, text):
    simulated = [digest(weights) for weights in trained(3, text, 11)]
    assert pool.run(3, jobs.rounds_in, text, 11, ordered=True) == simulated


@pytest.mark.parametrize("options", (STREAM, {**SPARSE, "overlap": True}, DILOCO), ids=("stream", "overlap", "plain"))
def test_rounds_that_travel_meanwhile_give_what_rounds_in_turn_give(pool, options):
    for meanwhile, in_turn in pool.run(2, jobs.hooks_and_rounds, options, 11):
        assert meanwhile == in_turn


def test_all_ranks_begin_with_rank_0s_weights(pool):
    torch.manual_seed(0)
    assert equal_on_all_ranks(pool.run(3, jobs.start_apart)) == jobs.named(jobs.Net())


@pytest.mark.parametrize(
    ("theirs", "field"),
    [
        ({"sync_every": 8}, "rounds"),
        ({"sync_every": 4, "composition": "ef(sign())"}, "composition: first.weight"),
        ({"sync_every": 4, "outer_optimizer": "nesterov()"}, "rounds"),
        ({"sync_every": 4, "seed": 3}, "setting: seed"),
    ],
)
def test_ranks_with_other_settings_are_told_before_the_first_step(pool, theirs, field):
    kind, text = equal_on_all_ranks(pool.run(2, jobs.disagree, [{"sync_every": 4}, theirs]))
    assert kind == "ConfigMismatch" and f"ranks differ in {field}" in text


@pytest.mark.parametrize("buffers", ("average", "local"))
def test_buffers_are_averaged_with_each_round_unless_they_stay_local(pool, buffers):
    results = pool.run(2, jobs.normed, buffers)
    equal_on_all_ranks([weights for weights, *_ in results])
    assert (results[0][1] == results[1][1]) == (buffers == "average")
    assert all(frozen and batches == 8 for *_, frozen, batches in results)


def test_a_nan_costs_one_round_and_leaves_all_sound(pool):
    results = pool.run(3, jobs.spoil, 12)
    assert equal_on_all_ranks([weights for weights, *_ in results])
    assert all(skipped == 1 and sound for _, skipped, sound in results)


def test_too_many_bad_rounds_are_an_error(pool):
    assert "1 consecutive rounds" in equal_on_all_ranks(pool.run(2, jobs.spoil, 12, 1))


def test_anchors_that_diverge_stop_or_heal(pool):
    assert "first in second.weight" in equal_on_all_ranks(pool.run(2, jobs.diverge, "stop"))
    _, resynced_tensors = equal_on_all_ranks(pool.run(2, jobs.diverge, "resync"))
    assert resynced_tensors == 1


def test_a_look_at_the_mean_leaves_no_trace(pool):
    assert pool.run(2, jobs.look_at_the_mean) == [True, True]


def test_moments_are_dropped_after_a_round_if_asked(pool):
    for counts in pool.run(2, jobs.reset_moments):
        assert counts == [8, 8, 0, 8, 8, 0]


def test_after_the_context_steps_are_ones_own(pool):
    results = pool.run(2, jobs.let_go)
    assert results[0][0] == results[1][0] and results[0][1] != results[1][1]
    assert [steps for *_, steps in results] == [2, 2]


def test_another_world_size_takes_the_anchors_and_the_mean_of_what_was_not_sent(pool):
    stored = pool.run(3, jobs.another_world, None)[0]
    for state in pool.run(2, jobs.another_world, stored):
        for name, anchor in state["anchor"].items():
            assert torch.equal(anchor, stored["rank0"]["anchor"][name])
        residuals = [stored[f"rank{r}"]["exchanger"]["layers"]["second.weight"]["residual"] for r in range(3)]
        kept = state["exchanger"]["layers"]["second.weight"]["residual"]
        torch.testing.assert_close(kept, sum(residuals) / 3)


def test_without_a_process_group_it_is_a_world_of_one():
    model, optimizer = jobs.make()
    with thinwire.local(model, optimizer, sync_every=4, composition="ef(topk(density=0.1))") as handle:
        losses = jobs.teach(model, optimizer, 0, 24)
        assert handle.consensus() == 0.0
        handle.full_average()
        assert handle.report().sent_bytes == 0 and handle.report().steps == 24
    assert losses[-1] < losses[0]


def test_what_cannot_be_carried_is_refused():
    model, optimizer = jobs.make()
    ddp = object.__new__(DistributedDataParallel)
    with pytest.raises(thinwire.CompositionError, match="wrapped in DistributedDataParallel"):
        thinwire.local(ddp, optimizer)
    with pytest.raises(thinwire.CompositionError, match="not the model's"):
        thinwire.local(nn.Linear(2, 2), optimizer)
    for options, message in (
        ({"sync_every": 0}, "at least 1"),
        ({"buffers": "sum"}, "average, local"),
        ({"optimizer_state": "mean"}, "local, reset"),
        ({"outer_optimizer": "shampoo()"}, "no part is called 'shampoo'"),
        ({"sync_every": "often()"}, "no part is called 'often'"),
        ({"composition": {"*nothing*": "dense()"}}, "no parameter name matches"),
        ({"num_fragments": 99}, "at most the number of layers, 8"),
    ):
        with pytest.raises(thinwire.CompositionError, match=message):
            thinwire.local(model, optimizer, **options)
    with pytest.raises(thinwire.IncompatibleParts, match="deltas"):
        thinwire.local(model, optimizer, payload="weights", composition="ef(sign())")


def test_steps_can_be_told_by_hand():
    model, optimizer = jobs.make()
    with thinwire.local(model, optimizer, sync_every=2, hooks=False) as handle:
        jobs.teach(model, optimizer, 0, 1)
        assert handle.step == 0
        for _ in range(2):
            handle.before_step()
            handle.after_step()
        assert handle.step == 2 and handle.rounds.num_rounds == 1


def test_ranks_with_fewer_rounds_are_told_at_once_and_spare_steps_do_no_harm(pool):
    """RELIABILITY R19."""
    (well, _, counted), (again, *_) = pool.run(2, jobs.uneven, (9, 11))
    assert well == again == "well" and "the end of training" not in counted  # which is no layer
    (first, waited, _), (second, *_) = pool.run(2, jobs.uneven, (6, 9))
    assert "this rank has finished after 6 steps, and other ranks have further rounds" in first and waited < 10
    assert "the end of training" in second
