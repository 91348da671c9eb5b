"""Rounds against what they claim to be: Algorithms 1 to 3 of Tolstobrov (2022), DiLoCo, streaming, and one another."""

import copy

import pytest
import torch

from helpers.local_training import (
    SHAPES,
    algorithm_1,
    algorithm_2,
    bsp,
    diloco,
    gradient,
    start,
    trained,
    workers,
)
from thinwire import IncompatibleParts, Meter, World, lockstep
from thinwire.aggregators import Choco, Dense, Gossip
from thinwire.compressors import Identity, Threshold, TopK
from thinwire.sync import SGD, Local, LocalRounds, consensus, parse_sync
from thinwire.topologies import Ring, Rotating

ADAMW = {"lr": 0.05, "weight_decay": 0.1}


def adamw(weights):
    return torch.optim.AdamW(weights, **ADAMW)


def assert_close(ours, theirs, **tolerance):
    for name in SHAPES:
        torch.testing.assert_close(ours[name], theirs[name], **(tolerance or {"rtol": 1e-12, "atol": 1e-12}))


def assert_same(ours, theirs):
    for mine, other in zip(ours, theirs, strict=True):
        for name in mine:
            assert torch.equal(mine[name], other[name]), name


def mean(by_rank):
    return {name: sum(w[name] for w in by_rank) / len(by_rank) for name in SHAPES}


@pytest.mark.parametrize("size", (1, 2, 3, 5))
@pytest.mark.parametrize("payload", ("deltas", "weights", "gradients"))
def test_a_round_at_every_step_is_bsp(size, payload):
    for w in trained(size, f'local(payload="{payload}")', 9):
        assert_close(w, bsp(size, 0.1, 9))


@pytest.mark.parametrize("period", (1, 2, 4, 16))
@pytest.mark.parametrize("size", (1, 2, 5))
@pytest.mark.parametrize("payload", ("deltas", "weights"))
def test_overlap_is_algorithm_1_as_printed(size, period, payload):
    settings, steps = f'local(sync_every={period}, overlap=true, payload="{payload}")', 2 * period + 3
    for mine, printed in zip(trained(size, settings, steps), algorithm_1(size, period, 0.1, steps), strict=True):
        assert_close(mine, printed)


def test_overlap_with_post_local_from_the_first_step_on_is_the_fixed_period():
    assert_same(
        trained(3, "local(sync_every=post_local(start=0, period=4), overlap=true)", 11),
        trained(3, "local(sync_every=4, overlap=true)", 11),
    )


def test_overlap_at_every_step_has_the_mean_of_bsp_but_for_where_gradients_are_taken():
    now, then = (trained(3, "local(overlap=true)", steps) for steps in (7, 8))
    taken = mean([gradient(rank, 7, w) for rank, w in enumerate(now)])
    assert_close(mean(then), {n: mean(now)[n] - 0.1 * taken[n] for n in SHAPES})
    assert not torch.allclose(then[0]["a"], bsp(3, 0.1, 8)["a"], rtol=1e-6)


@pytest.mark.parametrize("size", (1, 2, 3, 4, 5))
@pytest.mark.parametrize("payload", ("gradients", "deltas"))
def test_gossip_is_algorithm_2_as_printed(size, payload):
    """Deltas too: after one step of plain SGD a delta is the gradient times the learning rate."""
    ours = trained(size, Local(composition=Gossip(Identity(), Rotating()), payload=payload), 9)
    for mine, printed in zip(ours, algorithm_2(size, 0.1, 9), strict=True):
        assert_close(mine, printed)


@pytest.mark.parametrize("size", (2, 4, 5))
def test_gossip_with_a_threshold_is_algorithm_3_as_printed(size):
    exchange = Gossip(Threshold(0.5), Rotating())
    ours = trained(size, Local(composition=exchange, payload="gradients"), 9)
    for mine, printed in zip(ours, algorithm_2(size, 0.1, 9, threshold=0.5), strict=True):
        assert_close(mine, printed)


def test_gossip_of_weights_brings_replicas_together_and_gossip_of_deltas_does_not():
    apart = {}
    for payload in ("weights", "deltas"):
        group = workers(5, Local(sync_every=2, composition=Gossip(Identity(), Rotating()), payload=payload))
        lockstep([worker.train(40) for worker in group])
        (apart[payload],) = set(lockstep([consensus(w.weights, w.world) for w in group]))
    assert apart["weights"] < apart["deltas"] / 3


@pytest.mark.parametrize("size", (1, 2, 4))
@pytest.mark.parametrize("payload", ("deltas", "weights"))
def test_diloco_is_adamw_inside_and_torchs_nesterov_outside(size, payload):
    text = f'local(sync_every=4, outer_optimizer=nesterov(lr=0.7, momentum=0.9), payload="{payload}")'
    printed = diloco(size, 4, 14, ADAMW, {"lr": 0.7, "momentum": 0.9, "nesterov": True})
    for mine, theirs in zip(trained(size, text, 14, make=adamw), printed, strict=True):
        assert_close(mine, theirs)


def test_outer_sgd_is_torchs():
    printed = diloco(3, 2, 11, ADAMW, {"lr": 0.9, "momentum": 0.5})
    ours = trained(3, "local(sync_every=2, outer_optimizer=sgd(lr=0.9, momentum=0.5))", 11, make=adamw)
    for mine, theirs in zip(ours, printed, strict=True):
        assert_close(mine, theirs)


def test_outer_sgd_with_rate_one_is_averaging():
    assert_same(
        trained(3, "local(sync_every=3)", 10), trained(3, Local(sync_every=3, outer_optimizer=SGD(1.0, 0.0)), 10)
    )


def streaming(size, period, groups, delay, share, steps, lr):
    """Fragments in turn, as flights: (when to merge, names, the average of what was sent)."""
    w, anchor = [start() for _ in range(size)], start()
    flights = []
    for k in range(steps):
        for i in range(size):
            for n, g in gradient(i, k, w[i]).items():
                w[i][n] -= lr * g
        for at, names in enumerate(groups):
            if (k + 1 + at * period // len(groups)) % period == 0:
                flights.append((k + delay, names, {n: sum(anchor[n] - mine[n] for mine in w) / size for n in names}))
        for when, names, delta in flights:
            if when == k:
                for n in names:
                    anchor[n] = anchor[n] - delta[n]
                    for mine in w:
                        mine[n] = share * mine[n] + (1 - share) * anchor[n]
    return w


@pytest.mark.parametrize(("delay", "share"), ((0, 0.0), (1, 0.0), (2, 0.5), (3, 0.25)))
@pytest.mark.parametrize("fragments", (1, 2, 4))
def test_streaming_sends_fragments_in_turn_and_merges_them_late(fragments, delay, share):
    settings = Local(sync_every=4, num_fragments=fragments, fragment_sync_delay=delay, fragment_update_alpha=share)
    groups = workers(1, settings)[0].rounds.fragments
    assert (
        sorted(name for names in groups for name in names) == sorted(SHAPES)
        and len(groups) == fragments
        and all(groups)
    )
    ours = trained(3, settings, 15)
    for mine, printed in zip(ours, streaming(3, 4, groups, delay, share, 15, 0.1), strict=True):
        assert_close(mine, printed)


def test_one_fragment_without_delay_is_plain():
    plain, streamed = (
        trained(2, "local(sync_every=3)", 10),
        trained(2, "local(sync_every=3, num_fragments=1, fragment_sync_delay=0)", 10),
    )
    assert_same(plain, streamed)


EVERYTHING = (
    "local(sync_every=4)",
    "local(sync_every=3, overlap=true, composition=ef(sign()))",
    "local(sync_every=4, composition=ef(qsgd(bits=4)), outer_optimizer=nesterov(lr=0.7, momentum=0.9))",
    "local(sync_every=5, composition=ef(topk(density=0.3, values=uniform(bits=2))))",
    "local(sync_every=4, num_fragments=3, fragment_sync_delay=2, fragment_update_alpha=0.5, composition=ef(topk(k=2)), outer_optimizer=sgd(lr=0.8, momentum=0.3))",
    "local(sync_every=post_local(start=3, period=4), composition=ef(powersgd(rank=1)))",
    "local(sync_every=drift(threshold=0.3, max_period=5, test_every=2))",
    "ef(topk(k=2))",
)


APART = (
    'local(sync_every=4, payload="weights", composition=choco(topk(k=3), ring(), gamma=0.4))',
    "local(sync_every=2, composition=ef(gossip(topk(k=2), rotating())), full_average_every=3)",
)


@pytest.mark.parametrize("text", EVERYTHING + APART)
@pytest.mark.parametrize("stop", (1, 6, 7, 9))
def test_a_run_resumes_in_the_middle_of_a_period_bit_for_bit(text, stop):
    whole = workers(3, text, make=adamw, dtype=torch.float32)
    expected = lockstep([worker.train(13) for worker in whole])
    first = workers(3, text, make=adamw, dtype=torch.float32)
    lockstep([worker.train(stop) for worker in first])
    stored = copy.deepcopy([worker.state() for worker in first])
    second = workers(3, text, make=adamw, dtype=torch.float32)
    for worker, state in zip(second, stored, strict=True):
        worker.load(state, stop)
    assert_same(lockstep([worker.train(13 - stop) for worker in second]), expected)


@pytest.mark.parametrize("text", EVERYTHING)
def test_ranks_agree_about_anchors_and_learn(text):
    group = workers(3, text, make=adamw, dtype=torch.float32)
    lockstep([worker.train(100) for worker in group])
    for worker in group:
        assert_same([worker.rounds.anchor], [group[0].rounds.anchor])
    solution = bsp(3, 0.2, 200)
    middle = mean([w.weights for w in group])
    before = sum(float((start()[n] - solution[n]).norm()) for n in SHAPES)
    left = sum(float((middle[n] - solution[n]).norm()) for n in SHAPES)
    assert left < 0.7 * before  # AdamW of ranks that differ ends elsewhere


@pytest.mark.parametrize("payload", ("deltas", "weights"))
def test_a_nan_on_one_rank_skips_the_round_for_all_and_costs_only_that_rank_its_period(payload):
    text = f'local(sync_every=4, payload="{payload}")'
    group = workers(3, text, spoil=(1, 5))
    lockstep([worker.train(8) for worker in group])
    assert [worker.merged[-1].good for worker in group] == [False] * 3
    assert [worker.merged[-1].rolled_back for worker in group] == [False, True, False]
    anchors = trained(3, text, 4)
    assert_same([group[1].weights], [anchors[1]])
    assert not torch.equal(group[0].weights["a"], anchors[0]["a"]), "sound ranks keep their steps for the next round"
    lockstep([worker.train(4) for worker in group])
    assert all(worker.merged[-1].good for worker in group)
    assert_same([w.weights for w in group], [group[0].weights] * 3)


def test_a_nan_leaves_no_trace_in_memories():
    text = "local(sync_every=2, composition=ef(topk(k=1)), outer_optimizer=nesterov())"
    group, calm = workers(2, text, spoil=(0, 3)), workers(2, text)
    lockstep([worker.train(4) for worker in group])
    lockstep([worker.train(2) for worker in calm])
    for spoiled, other in zip(group, calm, strict=True):
        assert_same([spoiled.rounds.state_dict()["momentum"]], [other.rounds.state_dict()["momentum"]])
        residuals = [{n: m.residual for n, m in w.rounds.exchanger.states.items()} for w in (spoiled, other)]
        assert_same(residuals[:1], residuals[1:])


def test_half_precision_weights_have_anchors_that_keep_small_changes():
    group = workers(2, "local(sync_every=1, outer_optimizer=sgd(lr=0.001))", dtype=torch.bfloat16, lr=0.01)
    began = {n: a.clone() for n, a in group[0].rounds.anchor.items()}
    lockstep([worker.train(3) for worker in group])
    moved = sum(float((group[0].rounds.anchor[n] - began[n]).abs().sum()) for n in SHAPES)
    assert moved > 0 and group[0].rounds.anchor["a"].dtype == torch.float32


def test_a_full_average_after_every_second_round_of_gossip():
    group = workers(4, Local(sync_every=2, composition=Gossip(Identity(), Rotating()), full_average_every=2))
    for rounds in range(1, 5):
        lockstep([worker.train(2) for worker in group])
        distance = lockstep([consensus(w.weights, w.world) for w in group])[0]
        assert (distance < 1e-20) == (rounds % 2 == 0), rounds
    assert_close(mean([w.weights for w in group]), group[0].weights)


def test_a_full_average_comes_with_overlap_too():
    apart = {}
    for every in (0, 2):
        group = workers(
            4, Local(sync_every=2, composition=Gossip(Identity(), Rotating()), overlap=True, full_average_every=every)
        )
        lockstep([worker.train(20) for worker in group])
        apart[every] = lockstep([consensus(w.weights, w.world) for w in group])[0]
    assert apart[2] < 0.6 * apart[0]


def test_a_full_average_after_every_third_step_of_gradient_gossip():
    group = workers(4, Local(composition=Gossip(Identity(), Rotating()), payload="gradients", full_average_every=3))
    for step in range(1, 7):
        lockstep([worker.train(1) for worker in group])
        distance = lockstep([consensus(w.weights, w.world) for w in group])[0]
        assert (distance < 1e-20) == (step % 3 == 0), step


def test_a_full_average_keeps_the_mean_and_may_come_at_any_time():
    for settings in (
        Local(sync_every=3, composition=Gossip(Identity(), Rotating())),
        Local(sync_every=3),
        Local(sync_every=3, num_fragments=2, fragment_sync_delay=1, fragment_update_alpha=0.5),
    ):
        group = workers(3, settings)
        lockstep([worker.train(4) for worker in group])
        expected = mean([w.weights for w in group])
        assert lockstep([w.rounds.full_average(4, w.world) for w in group]) == [True] * 3
        for worker in group:
            assert_close(worker.weights, expected)
        lockstep([worker.train(4) for worker in group])


def test_a_full_average_after_a_round_that_all_skipped_keeps_the_work_of_finite_ranks():
    """Only layer b, averaged by all, had a NaN on rank 0: no rank took part in the gossip of layer a either."""
    gossip, world = Gossip(Identity(), Ring()), [World(rank, 3) for rank in range(3)]
    weights = [{"a": torch.zeros(2), "b": torch.zeros(2)} for _ in world]
    settings = Local(sync_every=1, composition=gossip, full_average_every=1)
    group = [LocalRounds(settings, own, {"a": gossip, "b": Dense()}) for own in weights]
    for step in range(2):
        for own in weights:
            own["a"] += 1
            own["b"] += 1
        if step == 1:
            weights[0]["b"][0] = torch.nan
        lockstep([rounds.after_step(step, w) for rounds, w in zip(group, world, strict=True)])
    assert group[0].bad_in_a_row == 1
    for own, rounds in zip(weights, group, strict=True):
        for name in own:  # two ranks had done a step more than their anchors, one went back to its own
            assert torch.allclose(own[name], torch.full((2,), 5 / 3)) and torch.equal(
                rounds.anchor[name], torch.ones(2)
            )


@pytest.mark.parametrize("skipped", (False, True))
def test_a_full_average_sends_anchors_alone_where_weights_are_their_anchors(skipped):
    group = workers(3, Local(sync_every=2, composition=Gossip(Identity(), Rotating())))
    lockstep([worker.train(4) for worker in group])
    if skipped:
        with torch.no_grad():
            group[1].weights["a"] += 1
    meters = [Meter() for _ in group]
    lockstep([w.rounds.full_average(4, w.world) for w in group], meters)
    alone = [Meter() for _ in group]
    lockstep([w.rounds._dense.run_step(w.weights, 4, w.world) for w in group], alone)
    models = meters[0].total().payload_bytes / alone[0].total().payload_bytes
    assert 1 + skipped < models < 1.2 + skipped, models


def test_consensus_is_the_mean_square_distance_from_the_mean():
    group = workers(4, "local(sync_every=100)")
    lockstep([worker.train(5) for worker in group])
    middle = mean([w.weights for w in group])
    expected = sum(float((w.weights[n] - middle[n]).square().sum()) for w in group for n in SHAPES) / 4
    measured = lockstep([consensus(w.weights, w.world) for w in group])
    assert len(set(measured)) == 1 and measured[0] == pytest.approx(expected)


def test_ranks_that_drift_differently_talk_at_the_same_time():
    group = workers(4, "local(sync_every=drift(threshold=0.25, max_period=50))")
    lockstep([worker.train(40) for worker in group])  # lockstep stops at the first disagreement
    assert len({w.rounds.num_rounds for w in group}) == 1 < group[0].rounds.num_rounds < 40


def test_a_round_of_deltas_sends_what_a_step_of_gradients_would():
    """Bytes of a round are those of the composition; talking every fourth step costs a quarter."""
    sent = {}
    for text in ("ef(topk(k=2))", "local(sync_every=4, composition=ef(topk(k=2)))"):
        meters = [Meter() for _ in range(3)]
        lockstep([worker.train(8) for worker in workers(3, text)], meters)
        sent[text] = meters[0].total()
    gradients, deltas = sent.values()
    assert deltas.payload_bytes == pytest.approx(gradients.payload_bytes / 4, rel=0.05)


def test_lossy_weights_are_refused_by_name():
    with pytest.raises(IncompatibleParts, match=r"ef\(topk\(k=2\)\).*deltas"):
        parse_sync('local(payload="weights", composition=ef(topk(k=2)))')
    with pytest.raises(IncompatibleParts, match="payload="):
        LocalRounds(
            Local(payload="weights"), start(), dict.fromkeys(SHAPES, parse_sync("powersgd(rank=1)").composition)
        )
    Local(payload="weights", composition=Gossip(Identity(), Rotating()))


def test_lossy_gossip_of_weights_is_refused_and_told_what_to_do():
    with pytest.raises(
        IncompatibleParts, match=r"neighbors that change \(rotating\(\)\).*copy of every peer.*deltas\"$"
    ):
        Local(payload="weights", composition=Gossip(TopK(k=2), Rotating()))
    with pytest.raises(IncompatibleParts, match=r"copy of every peer.*deltas.*choco\(\.\.\., ring\(\)\)"):
        Local(payload="weights", composition=Gossip(TopK(k=2), Ring()))
    with pytest.raises(IncompatibleParts, match=r"choco.*neighbors' weights.*payload='deltas'"):
        Local(composition=Choco(TopK(k=2), Ring()))
    Local(payload="weights", composition=Choco(TopK(k=2), Ring()))


def test_partners_rotate_from_round_to_round_whatever_the_period():
    """Of steps 0, 8, 16 ... with four partners to choose from, all would be the same."""
    group = workers(8, Local(sync_every=8, composition=Gossip(Identity(), Rotating())))
    meters = [Meter() for _ in group]
    lockstep([worker.train(32) for worker in group], meters)
    assert [worker.rounds.num_started for worker in group] == [4] * 8
    assert {where.step for where in meters[0].rows} == {0, 1, 2, 3}
