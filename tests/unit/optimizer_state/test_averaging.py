"""Averaging moments over ranks: exact where nothing is lost, the same on real processes, resumed to the last bit."""

import pytest
import torch

import thinwire
from helpers import local_jobs
from helpers import moments_jobs as jobs
from helpers.jobs import digest, table
from helpers.moments_jobs import SHAPES, TEXTS, adam, read_moments, together
from thinwire import World, lockstep
from thinwire.moments import AdamMoments, MomentsAveraging, parse_moments


def mean_over(ranks, key):
    return sum(one[key].double() for one in ranks) / len(ranks)


@pytest.mark.parametrize("text", ("dense()", "identity()", "gather(identity())"))
def test_an_exact_exchange_gives_the_mean_of_m_and_of_v(text):
    ranks = [read_moments(*adam(rank)) for rank in range(3)]
    after, _ = together(3, text)
    for one in after:
        for name in SHAPES:
            close = {"rtol": 1e-2, "atol": 1e-2} if name == "half" else {"rtol": 1e-5, "atol": 1e-6}
            for key in (f"{name}.exp_avg", f"{name}.exp_avg_sq"):
                torch.testing.assert_close(one[key].double(), mean_over(ranks, key), **close)


@pytest.mark.parametrize("text", TEXTS)
def test_all_ranks_end_alike(text):
    after, _ = together(3, text, rounds=2, sparse=True)
    assert len({digest(one) for one in after}) == 1


@pytest.mark.parametrize(("text", "most"), [("uniform(bits=8)", 0.06), ("uniform(bits=4)", 0.4)])
def test_gathered_moments_are_the_mean_of_what_each_rank_sent(text, most):
    """v is squared before it is averaged, so ranks that differ a lot are no loss."""
    exact, _ = together(4, "dense()", sparse=True)
    after, _ = together(4, text, sparse=True)
    for key in ("a.exp_avg", "a.exp_avg_sq"):
        error = (after[0][key] - exact[0][key]).norm() / exact[0][key].norm()
        assert error < most


def test_a_memory_of_differences_finds_moments_that_stand_still():
    """EF21: what is not sent in one round is in the next; without, it is lost again and again."""
    errors = {}
    for text in ("topk(density=0.2)", "ef21(topk(density=0.2))"):
        adams = [adam(rank) for rank in range(2)]
        exact = {key: mean_over([read_moments(*one) for one in adams], key) for key in read_moments(*adams[0])}
        stored = [{name: t.clone() for name, t in read_moments(*one).items()} for one in adams]
        ways = [jobs.averaging(*one, text) for one in adams]
        for _ in range(12):
            for (weights, optimizer), own in zip(adams, stored, strict=True):
                for name, weight in weights.items():
                    for key in ("exp_avg", "exp_avg_sq"):
                        optimizer.state[weight][key].copy_(own[f"{name}.{key}"])
            lockstep([way.average(World(rank, 2)) for rank, way in enumerate(ways)])
        found = read_moments(*adams[0])
        errors[text] = [
            float((found[k].double() - exact[k]).norm() / exact[k].norm()) for k in ("a.exp_avg", "a.exp_avg_sq")
        ]
    assert max(errors["ef21(topk(density=0.2))"]) < 0.05 < min(errors["topk(density=0.2)"])


def test_savings_are_packed():
    dense = together(2, "dense()")[1][0].total().payload_bytes
    assert dense / together(2, "uniform(bits=8)")[1][0].total().payload_bytes > 3
    assert dense / together(2, "uniform(bits=2)")[1][0].total().payload_bytes > 6  # vectors are dense
    once = together(2, "topk(density=0.02)")[1][0].total().payload_bytes
    twice = together(2, "moments(topk(density=0.02), mask=false)")[1][0].total().payload_bytes
    assert once < twice, "positions travel once"


def test_the_rank_with_fewer_steps_is_brought_to_the_others_count():
    """Constant gradients: corrected moments are the gradient itself, so their average is, too."""
    adams = []
    for steps in (3, 9):
        weight = torch.nn.Parameter(torch.zeros(50, 40))
        optimizer = torch.optim.Adam([weight])
        for _ in range(steps):
            weight.grad = torch.full((50, 40), 0.5)
            optimizer.step()
        adams.append((weight, optimizer))
    ways = [MomentsAveraging(AdamMoments(o), parse_moments("dense()")) for _, o in adams]
    lockstep([way.average(World(rank, 2)) for rank, way in enumerate(ways)])
    for weight, optimizer in adams:
        state = optimizer.state[weight]
        assert state["step"] == 9
        torch.testing.assert_close(state["exp_avg"] / (1 - 0.9**9), torch.full((50, 40), 0.5))
        torch.testing.assert_close(state["exp_avg_sq"] / (1 - 0.999**9), torch.full((50, 40), 0.25))


def test_without_counters_a_fresh_rank_takes_a_step_of_the_wrong_length():
    """Its bias correction takes the others' moments for those of a first step: √(1 - β₂) / (1 - β₁) is a third."""
    moved = {}
    for text in ("dense()", "moments(dense(), counters=false)"):
        adams = [adam(0, steps=300), adam(0, steps=0)]
        ways = [jobs.averaging(*one, text) for one in adams]
        lockstep([way.average(World(rank, 2)) for rank, way in enumerate(ways)])
        weights, optimizer = adams[1]
        before = weights["a"].detach().clone()
        jobs.one_more(weights, optimizer, 0, 0)
        moved[text] = float((weights["a"].detach() - before).norm())
        assert optimizer.state[weights["a"]]["step"] == (301 if text == "dense()" else 1)
    assert moved["moments(dense(), counters=false)"] < 0.7 * moved["dense()"]


def test_nobody_has_moments_yet():
    adams = [adam(rank, steps=0) for rank in range(2)]
    ways = [jobs.averaging(*one, "uniform()") for one in adams]
    assert lockstep([way.average(World(rank, 2)) for rank, way in enumerate(ways)]) == [True, True]
    assert not adams[0][1].state


@pytest.mark.parametrize("options", ({}, {"foreach": True}, {"foreach": False}, {"fused": True}, {"maximize": True}))
@pytest.mark.parametrize("kind", (torch.optim.Adam, torch.optim.AdamW))
def test_every_form_of_adam_is_carried_and_goes_on(kind, options):
    after, _ = together(2, "uniform()", kind=kind, **options)
    plain, _ = together(2, "uniform()", kind=kind, **{k: v for k, v in options.items() if k == "maximize"})
    for key, value in after[0].items():
        if key.startswith("half"):
            continue  # fused kernels round bfloat16 elsewhere
        torch.testing.assert_close(value, plain[0][key], rtol=0.02, atol=1e-5)
    weights, optimizer = adam(0, steps=0, kind=kind, **options)
    way = jobs.averaging(weights, optimizer, "moments(uniform(), counters=false)")
    lockstep([way.average(World(0, 1))])  # makes the state that Adam would make
    jobs.one_more(weights, optimizer, 0, 0)
    assert all(float(state["step"]) == 1 for state in optimizer.state.values())


def test_groups_have_floors_of_their_own_and_frozen_parameters_stay_out():
    first, second, frozen = (torch.nn.Parameter(torch.zeros(40, 40)) for _ in range(3))
    frozen.requires_grad_(False)
    groups = [{"params": [first, frozen]}, {"params": [second], "betas": (0.5, 0.9)}]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    for weight in (first, second):
        weight.grad = torch.randn(40, 40, generator=torch.Generator().manual_seed(1))
    optimizer.step()
    moments = AdamMoments(optimizer)
    assert list(moments.parameters) == ["0.0", "1.0"]
    assert [moments.betas(name) for name in moments.parameters] == [(0.9, 0.999), (0.5, 0.9)]
    state = optimizer.state_dict()
    state["param_groups"][1]["betas"] = (0.6, 0.9)
    optimizer.load_state_dict(state)  # makes new groups
    assert moments.betas("1.0") == (0.6, 0.9)
    optimizer.param_groups[1]["betas"] = (0.5, 0.9)
    way = MomentsAveraging(moments, parse_moments("moments(uniform(bits=2), mask=false)"))
    lockstep([way.average(World(0, 1))])
    assert frozen not in optimizer.state
    for weight, most in ((first, 7.28), (second, 1.868)):
        state = optimizer.state[weight]
        assert float((state["exp_avg"].abs() / state["exp_avg_sq"].sqrt()).nan_to_num(0.0).max()) <= most


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), "must be a torch.optim.Adam or AdamW, got SGD"),
        (lambda p: torch.optim.NAdam(p), "got NAdam"),
        (lambda p: torch.optim.Adam(p, amsgrad=True), "use amsgrad=False"),
    ],
)
def test_other_optimizers_are_refused_by_name(make, says):
    with pytest.raises(thinwire.CompositionError, match=says):
        AdamMoments(make([torch.nn.Parameter(torch.zeros(4, 4))]))


def test_what_has_no_moments_is_refused():
    with pytest.raises(thinwire.CompositionError, match="no parameter that requires gradients"):
        AdamMoments(torch.optim.Adam([torch.zeros(3)]))
    with pytest.raises(thinwire.CompositionError, match="complex64; parameters must be real"):
        AdamMoments(torch.optim.Adam([torch.nn.Parameter(torch.zeros(3, dtype=torch.complex64))]))
    with pytest.raises(thinwire.CompositionError, match="x is not a parameter of this optimizer"):
        AdamMoments(torch.optim.Adam([torch.nn.Parameter(torch.zeros(3))]), {"x": torch.zeros(3)})


@pytest.mark.parametrize(
    "text", ("powersgd(rank=2)", "gossip(identity(), ring())", "two_hop(topk(density=0.1))", "vote()")
)
def test_exchanges_that_cannot_carry_pairs_are_refused_by_name(text):
    with pytest.raises(thinwire.IncompatibleParts, match=r"cannot send pairs \(m, v\); use dense\(\)"):
        MomentsAveraging(AdamMoments(adam(0)[1]), parse_moments(text))


@pytest.mark.parametrize(
    "text", ("randomk(density=0.1)", "union(randomk(density=0.1))", "sketch(randomk(density=0.1))")
)
def test_what_is_blown_up_to_be_right_on_average_is_refused(text):
    with pytest.raises(thinwire.IncompatibleParts, match="scaled=false"):
        MomentsAveraging(AdamMoments(adam(0)[1]), parse_moments(text))
    MomentsAveraging(AdamMoments(adam(0)[1]), parse_moments(text.replace("0.1", "0.1, scaled=false")))


# Real processes


@pytest.mark.parametrize("size", (2, 3))
def test_processes_give_the_moments_and_bytes_of_lockstep(pool, size):
    by_rank = pool.run(size, jobs.really, TEXTS, 2, ordered=True, within_s=100.0)
    for text, real in zip(TEXTS, zip(*by_rank, strict=True), strict=True):
        after, meters = together(size, text, rounds=2)
        assert [one for one, _ in real] == [digest(one) for one in after], text
        assert [rows.keys() for _, rows in real] == [table(meter).keys() for meter in meters], text
        for (_, rows), meter in zip(real, meters, strict=True):
            assert all(rows[w] == pytest.approx(expected) for w, expected in table(meter).items()), text


def test_the_public_call_averages_at_once(pool):
    results = pool.run(3, jobs.average, "uniform(bits=8)")
    assert len({digest(moments) for moments, _ in results}) == 1
    assert "saving" in results[0][1]


@pytest.mark.parametrize("text", ("ef21(topk(density=0.2))", 'ef(topk(density=0.1, values="bf16"))', "qsgd(bits=4)"))
@pytest.mark.parametrize("stop", (0, 3))
def test_a_resumed_averaging_goes_on_bit_for_bit(pool, text, stop):
    assert pool.run(2, jobs.resume, text, stop) == [True, True]


def test_a_nan_on_one_rank_changes_nothing_anywhere(pool):
    for error, same in pool.run(2, jobs.spoiled):
        assert same and "no rank's moments have changed" in error


def test_ranks_that_disagree_are_told(pool):
    for kind, text in pool.run(2, jobs.disagree, ["uniform(bits=8)", "moments(uniform(bits=8), floor=false)"]):
        assert kind == "ConfigMismatch" and "ranks differ in moments" in text


def test_alone_it_needs_no_process_group():
    weights, optimizer = adam(0)
    before = read_moments(weights, optimizer)
    thinwire.moments.average(optimizer, "dense()").close()
    assert all(torch.equal(before[key], value) for key, value in read_moments(weights, optimizer).items())


# Under `local`

AVERAGED = {"sync_every": 4, "optimizer_state": "uniform(bits=8)"}


@pytest.mark.parametrize(
    "options",
    (
        {},
        {"num_fragments": 3, "fragment_sync_delay": 2, "fragment_update_alpha": 0.5},
        {"overlap": True, "payload": "weights"},
    ),
)
def test_local_training_averages_moments_with_its_rounds(pool, options):
    results = pool.run(3, local_jobs.learn, {**AVERAGED, **options})
    assert len({after for _, after, *_ in results}) == 1
    assert all(sum(losses[-4:]) < sum(losses[:4]) for losses, *_ in results)


@pytest.mark.parametrize("state", ("dense()", "ef21(topk(density=0.2))"))
def test_after_a_round_all_ranks_have_the_same_moments(pool, state):
    before, after = zip(
        *pool.run(2, local_jobs.moments_around, {"sync_every": 4, "optimizer_state": state}), strict=True
    )
    assert before[0] != before[1] and after[0] == after[1]


@pytest.mark.parametrize("stop", (5, 8))
def test_a_resumed_local_run_goes_on_bit_for_bit(pool, stop):
    options = {"sync_every": 4, "composition": "ef(topk(density=0.1))", "optimizer_state": "ef21(topk(density=0.2))"}
    assert pool.run(2, local_jobs.resume, options, stop) == [True, True]
    assert pool.run(2, local_jobs.resume, options, stop, 13, "Normed") == [True, True]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"optimizer_state": "uniform()", "payload": "gradients", "sync_every": 1}, "their moments are equal"),
        ({"optimizer_state": "averaged"}, "optimizer_state must be local, reset or a composition"),
        ({"optimizer_state": "uniform()", "composition": "gossip(identity(), ring())"}, "among neighbors \\(gossip\\)"),
    ],
)
def test_local_says_what_does_not_go_together(options, says):
    model, optimizer = local_jobs.make()
    with pytest.raises(thinwire.ThinwireError, match=says):
        thinwire.local(model, optimizer, **options)


def test_a_state_of_another_world_size_is_merged(pool):
    options = {"sync_every": 4, "optimizer_state": "ef21(topk(density=0.2))"}
    stored = pool.run(2, local_jobs.stored_moments, options, None)[0]
    one, other, third = pool.run(3, local_jobs.stored_moments, options, stored)
    assert digest(one) == digest(other) == digest(third)
