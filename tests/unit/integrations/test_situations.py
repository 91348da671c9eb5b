"""`attach` where hooks like to hang, leak or lose something, each on real processes."""

import json

import pytest
import torch

from helpers import ddp_scenarios as jobs
from helpers.pool import RankFailed


def equal_on_all_ranks(results):
    assert all(result == results[0] for result in results)
    return results[0]


def assert_close(a, b):
    for name in a:
        torch.testing.assert_close(a[name], b[name])


@pytest.mark.parametrize("composition", ("ef(topk(density=0.05))", "ef(powersgd(rank=2))"))
def test_sixty_four_buckets(pool, composition):
    results = pool.run(2, jobs.sixty_four, composition)
    assert results[0][:2] == results[1][:2]
    assert results[0][0] == 64


@pytest.mark.parametrize("composition", ("ef(topk(density=0.05))", "ef(powersgd(rank=2))"))
def test_memory_follows_names_when_buckets_are_rebuild(pool, composition):
    one, result = equal_on_all_ranks(pool.run(2, jobs.rebuild, composition, 100.0))
    several, same = equal_on_all_ranks(pool.run(2, jobs.rebuild, composition, 0.006))
    assert one == [1, 1, 1, 1]
    assert several[0] != several[1] > 1
    assert ("topk" not in composition) or result == same  # a sum of other lengths may differ in its last bit


@pytest.mark.parametrize("names", (["first.weight", "first.bias"], ["third.bias"]), ids=str)
def test_frozen_parameters_stay_and_the_others_learn(pool, names):
    results = pool.run(2, jobs.freeze, names)
    for (plain, ours), unchanged, _ in results:
        assert_close(plain, ours)
        assert unchanged == set(names)
    equal_on_all_ranks([digest for _, _, digest in results])


def test_a_parameter_frozen_after_wrapping_is_refused(pool):
    assert "wrap the model again" in equal_on_all_ranks(pool.run(2, jobs.freeze_too_late))


def test_strides_of_a_parameter_do_not_matter(pool):
    assert pool.run(2, jobs.transposed) == [True, True]


def test_groups_train_side_by_side(pool):
    results = pool.run(4, jobs.two_groups)
    assert results[0][0] == results[1][0] != results[2][0] == results[3][0]
    assert [world for _, world, _ in results] == [(0, 2), (1, 2), (0, 2), (1, 2)]
    assert [steps for _, _, steps in results] == [3, 3, 4, 4]


def test_a_whole_model_saved_by_torch_says_so_and_can_be_attached_to(pool):
    same, told, steps, _ = equal_on_all_ranks(pool.run(4, jobs.save_whole))
    assert same and len(told) == 1 and "copy" in told[0] and steps == 2


def test_clipped_gradients_are_the_averages(pool):
    for (plain, ours), norms in pool.run(2, jobs.clip):
        assert_close(plain, ours)
        assert max(norms) > 0.1


@pytest.mark.parametrize("find_unused", (False, True))
def test_a_killed_peer_is_an_error_of_backward_that_names_it(pool, tmp_path, find_unused):
    with pytest.raises(RankFailed, match="-9"):  # rank 1's exit code
        pool.run(2, jobs.die, 3, str(tmp_path), find_unused)
    pool.close()
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert (seen["step"], seen["kind"]) == (3, "PeerLostError")
    assert "rank 1 closed the connection" in seen["text"] and seen["s"] < 5


def test_a_parameter_unused_on_one_rank_is_averaged_with_its_zeros(pool):
    results = pool.run(2, jobs.unused_on_one_rank)
    for (plain, ours), _, _ in results:
        assert_close(plain, ours)
    assert results[0][2] > 0 == results[1][2]
    equal_on_all_ranks([digest for _, digest, _ in results])


def test_an_unused_parameter_keeps_its_residual_however_slow_ddp_is(pool):
    assert equal_on_all_ranks(pool.run(2, jobs.leave_unused_slowly)) == [False, True] * 3


@pytest.mark.parametrize("detach", (True, False))
def test_a_dropped_model_leaves_nothing_behind(pool, detach):
    for alive, counts in pool.run(2, jobs.outlive, detach):
        assert alive == 0
        assert counts[-1] <= counts[0], "threads or connections are left"


def test_a_long_run_keeps_no_tensors(pool):
    for counts in pool.run(2, jobs.grow):
        assert len(set(counts)) == 1


@pytest.mark.parametrize("find_unused", (False, True))
@pytest.mark.parametrize("on_divergence", ("stop", "resync"))
def test_a_rank_without_inputs_has_not_diverged(pool, on_divergence, find_unused):
    steps, resynced_tensors, _ = equal_on_all_ranks(pool.run(2, jobs.join_and_check, on_divergence, find_unused))
    assert (steps, resynced_tensors) == (7, 0)


def test_resync_waits_for_the_end_of_backward(pool):
    _, resynced_tensors = equal_on_all_ranks(pool.run(2, jobs.resync_slowly))
    assert resynced_tensors == 1


@pytest.mark.parametrize("static_graph", (False, True))
def test_errors_keep_their_type_in_the_first_step(pool, static_graph):
    assert pool.run(2, jobs.spoil_at_once, static_graph) == ["NonFiniteError"] * 2
    pool.close()  # DDP wants no more of these models


def test_a_nan_leaves_no_trace_in_gradients_that_are_views_of_buckets(pool):
    finite, skipped, _ = equal_on_all_ranks(pool.run(2, jobs.spoil_views))
    assert finite and skipped == 2
