"""`attach` in every situation of a DDP script, each on two real processes."""

import pytest
import torch

from helpers import ddp_jobs as jobs
from helpers.pool import RankFailed

CAPS = {1: 100.0, 2: 0.012, 8: 0.002}  # DDP's bucket size in MB that gives about so many buckets


def equal_on_all_ranks(results):
    assert all(result == results[0] for result in results)
    return results[0]


def assert_close(a, b, **tolerance):
    for name in a:
        torch.testing.assert_close(a[name], b[name], **tolerance)


def test_a_dense_composition_trains_as_plain_ddp_does(pool):
    for (plain, ours), _ in pool.run(2, jobs.plain_and_attached, "dense()"):
        assert_close(plain, ours)


def test_lossless_feedback_stays_near_plain_ddp_and_saves_bytes(pool):
    for (_, _), saving in pool.run(2, jobs.plain_and_attached, "ef(topk(density=0.01))"):
        assert saving > 2  # biases travel dense and the model is tiny


FEEDBACK = pytest.mark.parametrize("composition", ("ef(topk(density=0.05))", "ef(flatten(topk(density=0.05)))"))


@pytest.mark.parametrize("composition", ("ef(topk(density=0.05))", "ef(powersgd(rank=2))", "qsgd(bits=4)"))
@pytest.mark.parametrize("cap_mb", CAPS.values(), ids=CAPS)
def test_replicas_are_equal_with_any_number_of_buckets(pool, composition, cap_mb):
    results = pool.run(2, jobs.trained, composition, 6, None, {"bucket_cap_mb": cap_mb})
    assert results[0][0] == results[1][0]


@FEEDBACK
def test_buckets_do_not_change_what_is_computed(pool, composition):
    digests = {
        cap: pool.run(2, jobs.trained, composition, 6, None, {"bucket_cap_mb": cap})[0][0] for cap in CAPS.values()
    }
    assert len(set(digests.values())) == 1


@pytest.mark.parametrize(
    ("net", "ddp"),
    [
        (None, {"static_graph": True}),
        (None, {"find_unused_parameters": True}),
        (None, {"gradient_as_bucket_view": True}),
        ({"shared": True}, {}),
        ({"dtype": torch.bfloat16}, {}),
        ({"dtype": torch.float16}, {}),
    ],
    ids=str,
)
def test_ddp_options_and_types(pool, net, ddp):
    results = pool.run(2, jobs.trained, "ef(topk(density=0.05))", 6, net, ddp)
    assert results[0][0] == results[1][0]
    assert all(torch.tensor(losses).isfinite().all() for _, _, losses, _ in results)


def test_accumulated_gradients_are_exchanged_once(pool):
    _, steps = equal_on_all_ranks(pool.run(2, jobs.accumulate, 3))
    assert steps == 4


@FEEDBACK
def test_an_unused_parameter_keeps_its_residual(pool, composition):
    kept, _ = equal_on_all_ranks(pool.run(2, jobs.leave_unused, composition))
    assert kept["third.weight"] and not kept["second.weight"]


def test_rows_of_an_embedding_travel_as_rows(pool):
    for (plain, ours), by_layer in pool.run(2, jobs.embed):
        assert_close({"embed": plain["embed.weight"]}, {"embed": ours["embed.weight"]})
        assert 0 < by_layer["embed.weight"] < 4 * 4 * 500 * 16


def test_channels_last_gives_what_contiguous_gives(pool):
    for contiguous, strided in pool.run(2, jobs.channels_last):
        assert_close(contiguous, strided, rtol=1e-4, atol=1e-5)


@FEEDBACK
def test_a_loss_scale_stays_out_of_memories_and_an_overflow_changes_none(pool, composition):
    for _, scales, unchanged, size in pool.run(2, jobs.scaled, composition):
        assert unchanged and scales[2] < scales[1]
        assert size < 1.0, "residuals are in units of the gradient, not of the loss scale"


@pytest.mark.parametrize("with_test", (True, False))
def test_a_nan_costs_one_step_on_all_ranks(pool, with_test):
    seen, skipped, _ = equal_on_all_ranks(pool.run(2, jobs.spoil, with_test))
    assert [nan for nan, _ in seen] == [False, False, True, False, False]
    assert [same for _, same in seen] == [False, False, True, False, False]
    assert skipped == 1


def test_many_bad_steps_in_a_row_are_an_error_of_its_own_type(pool):
    for step, kind, text in pool.run(2, jobs.too_many_bad_steps):
        assert (step, kind) == (2, "NonFiniteError") and "3 consecutive steps" in text


def test_ranks_without_inputs_play_along(pool):
    assert pool.run(2, jobs.join_uneven) == [5, 5]


def test_two_models_do_not_get_into_each_others_way(pool):
    _, steps = equal_on_all_ranks(pool.run(2, jobs.two_models))
    assert steps == [3, 3]


def test_a_compiled_model_goes_through_the_wire(pool):
    _, steps = equal_on_all_ranks(pool.run(2, jobs.compiled, within_s=100.0))
    assert steps == 3


def test_a_copy_says_so_and_can_be_attached_to(pool):
    for told, steps in pool.run(4, jobs.copy_it):
        assert len(told) == 1 and "copy" in told[0] and steps == 2


def test_warm_up_pause_change_and_detach(pool):
    results = pool.run(2, jobs.live_a_life)
    equal_on_all_ranks([digest for _, _, digest in results])
    sent, carried, _ = results[0]
    assert carried
    assert sent["warm-up"] == pytest.approx(sent["paused"], rel=0.1)
    assert sent["compressed"] < sent["warm-up"] / 2 and sent["resumed"] < sent["warm-up"] / 2
    assert sent["changed"] < sent["warm-up"] and sent["detached"] == 0
    assert sent["attached again"] < sent["warm-up"] / 2


def test_drifted_weights_stop_the_job(pool):
    with pytest.raises(RankFailed) as failed:
        pool.run(2, jobs.drift, "stop")
    for name, text in failed.value.errors:
        assert name == "DivergedError" and "second.weight" in text and "rank 1" in text


def test_drifted_weights_are_healed_if_asked(pool):
    _, resynced_tensors = equal_on_all_ranks(pool.run(2, jobs.drift, "resync"))
    assert resynced_tensors >= 1
