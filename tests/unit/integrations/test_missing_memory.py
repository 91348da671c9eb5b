"""States that lack a rank's memory: refused by name on all ranks; not strict, it starts empty and all ranks agree."""

import pytest
import torch

from helpers import ddp_jobs, missing_jobs
from helpers.cases import STRUCTURE_TEXTS
from helpers.memory_cases import LAYERS, MEMORIES, composed, mass, slack, train, trained
from thinwire import Exchanger, World, lockstep
from thinwire.core import CheckpointError, flatten_state, memory_items, topology_of
from thinwire.integrations.handle_memory import describe_memory
from thinwire.integrations.missing_memory import OWN_KINDS, fill_missing
from thinwire.integrations.stored_ranks import StoredRanks
from thinwire.testing import assert_same

EF = "ef(topk(density=0.05))"
EF21 = "ef21(topk(density=0.05))"
CONTROLLED = "adapt(ef(topk(density=0.05)), controller=lgreco(every=2, start=1, window=1, error_levels=100))"
TEXTS = list(dict.fromkeys([*MEMORIES, *STRUCTURE_TEXTS]))


def without(state, *ranks):
    return {key: value for key, value in state.items() if key not in {f"rank{rank}" for rank in ranks}}


def resumed(text, missing=1, size=3):
    """Workers before, and workers that continue without one rank's memory, each from a file of its own."""
    olds = trained(text, size=size)
    states = {rank: old.state_dict() | {"step": 4} for rank, old in enumerate(olds)}
    news = [Exchanger(LAYERS, composed(text), seed=3) for _ in olds]
    for rank, new in enumerate(news):
        own = {rank: states[rank]} if rank != missing else {0: states[0]}
        filled = fill_missing(own, [rank], [describe_memory(new)], World(rank, size))
        new.load_state_dict(filled[rank])
    return olds, news


@pytest.mark.parametrize("text", TEXTS)
def test_present_ranks_keep_what_is_theirs_and_what_ranks_share_starts_again(text):
    olds, news = resumed(text)
    fresh = Exchanger(LAYERS, composed(text), seed=3)
    for rank, (old, new) in enumerate(zip(olds, news, strict=True)):
        assert new.plan == old.plan
        assert_same(flatten_state(new._planning.state), flatten_state(olds[0 if rank == 1 else rank]._planning.state))
        for kind in OWN_KINDS:
            for name, owed in mass(old, kind).items():
                expected = torch.zeros_like(owed) if rank == 1 else owed
                assert (mass(new, kind)[name] - expected).abs().max() <= slack(text, owed), (kind, name)
        for name, spec in fresh.layers.items():
            assert_same(shared_items(new, name, spec), shared_items(fresh, name, spec))


def shared_items(exchanger, name, spec):
    items = memory_items(exchanger.aggregators[name], exchanger.states[name], spec)
    values = [flatten_state(item.value) for item in items if item.kind not in OWN_KINDS]
    return {f"{at} {leaf}": tensor for at, value in enumerate(values) for leaf, tensor in value.items()}


@pytest.mark.parametrize("text", [text for text in TEXTS if topology_of(composed(text)) is None])
def test_all_ranks_get_the_same_averages_after_one_lost_its_memory(text):
    _, news = resumed(text)
    for step in range(4, 8):
        tensors = [{s.name: torch.randn(s.shape).to(s.dtype) for s in LAYERS} for _ in news]
        values = lockstep([e.run_step(tensors[r], step, World(r, 3)) for r, e in enumerate(news)])
        assert_same(values[0], values[1])
        assert_same(values[0], values[2])
    assert news[0].plans == news[1].plans == news[2].plans


def test_ef21s_mean_is_that_of_all_estimates_after_one_lost_its_own():
    _, news = resumed(EF21)
    train(news, range(4, 8))
    for name in ("w", "v"):
        own = torch.stack([new.states[name].own_estimate for new in news])
        for new in news:
            torch.testing.assert_close(new.states[name].mean_estimate, own.mean(0))


def test_a_file_of_rank_0_is_refused_on_all_ranks_with_the_rank_and_both_remedies(pool):
    stored = pool.run(2, ddp_jobs.save_state, EF)[0]
    for kind, text in pool.run(2, missing_jobs.load, EF, [without(stored, 1)] * 2, True):
        assert kind == "CheckpointError"
        assert "the memory of rank 1 is missing" in text and "rank 1 has passed the state of rank 0" in text
        assert (
            "state_dict(gather=True)" in text and "each rank save and load its own" in text and "strict=False" in text
        )


@pytest.mark.parametrize("composition", (EF, 'ef(topk(density=0.05), residual_dtype="int8")', "ef(powersgd(rank=2))"))
@pytest.mark.parametrize("is_per_rank", (True, False), ids=("a file each", "one file"))
def test_not_strict_a_rank_without_a_memory_starts_empty_and_all_agree(pool, composition, is_per_rank):
    stored = pool.run(3, ddp_jobs.save_state, composition)[0]
    partial = without(stored, 1)
    files = [without(stored, 1, 2), without(stored, 1, 2), without(stored, 0, 1)] if is_per_rank else [partial] * 3
    loaded = pool.run(3, missing_jobs.load, composition, files, False)
    whole = pool.run(3, missing_jobs.load, composition, [stored] * 3, True)
    assert len({(step, digest) for _, _, _, step, digest, _ in loaded}) == 1 and loaded[0][3] == 8
    for rank, (dropped, texts, kept, *_) in enumerate(loaded):
        assert dropped == loaded[0][0] and "no memory of rank 1" in dropped[0]
        assert ("PowerSGD" in " ".join(dropped)) == ("powersgd" in composition)
        assert [text.partition("load_state_dict: ")[2] for text in texts] == dropped
        for name, residual in whole[rank][2].items():
            assert torch.equal(kept[name], torch.zeros_like(residual) if rank == 1 else residual)


@pytest.mark.parametrize("composition", (EF21, "dgc(topk(density=0.05))", CONTROLLED))
def test_replicas_stay_equal_after_one_lost_its_memory(pool, composition):
    stored = pool.run(3, ddp_jobs.save_state, composition)[0]
    loaded = pool.run(3, missing_jobs.load, composition, [without(stored, 0)] * 3, False)
    assert len({(step, digest, str(plan)) for _, _, _, step, digest, plan in loaded}) == 1
    assert all(("EF21's estimate" in " ".join(dropped)) == (composition == EF21) for dropped, *_ in loaded)


def test_another_number_of_ranks_needs_all_states_or_counts_missing_ones_as_empty(pool):
    stored = pool.run(3, ddp_jobs.save_state, EF)[0]
    partial = without(stored, 1)
    for kind, text in pool.run(2, missing_jobs.load, EF, [partial] * 2, True):
        assert kind == "CheckpointError" and "memory of rank 1 is missing: 3 ranks have saved, there are 2 now" in text
        assert "state_of_rank_0" in text and "load_dcp" in text
    for dropped, _, kept, *_ in pool.run(2, missing_jobs.load, EF, [partial] * 2, False):
        assert "no memory of rank 1" in dropped[0]
        for name, residual in kept.items():
            rest = sum(partial[f"rank{r}"]["layers"][name]["residual"].double() for r in (0, 2))
            torch.testing.assert_close(residual, rest / 3, rtol=1e-6, atol=1e-7)
    files = [without(stored, 1, 2), without(stored, 0, 2)]
    for kind, text in pool.run(2, missing_jobs.load, EF, files, False):
        assert kind == "CheckpointError" and "different ranks" in text and "state_of_rank_0" in text


@pytest.mark.parametrize("strict", (True, False))
def test_a_state_that_is_damaged_on_one_rank_is_refused_on_all(pool, strict):
    stored = pool.run(2, ddp_jobs.save_state, EF)[0]
    damaged = {**stored, "rank1": {key: value for key, value in stored["rank1"].items() if key != "layers"}}
    files = [without(stored, 1), without(damaged, 0)]
    (first, text), (second, reason) = pool.run(2, missing_jobs.load, EF, files, strict)
    assert first == second == "CheckpointError"
    assert "layers" in reason and "rank 1 could not load" in text and reason in text


def test_a_rank_saves_its_own_state_alone_and_without_traffic(pool):
    (alone, gathered, sent), (_, other, _) = pool.run(2, missing_jobs.save_alone)
    assert set(alone) == {"world_size", "composition", "rank0"} and set(gathered) == {*alone, "rank1"}
    assert_same(alone["rank0"], gathered["rank0"])
    assert_same(gathered["rank1"], other["rank1"])
    assert sent == 0


def test_states_of_all_ranks_merge_into_one_by_their_keys(pool):
    stored = pool.run(3, ddp_jobs.save_state, EF)[0]
    each = [without(stored, *({0, 1, 2} - {rank})) for rank in range(3)]
    merged = {**each[0], **each[1], **each[2]}
    assert merged.keys() == stored.keys()
    assert pool.run(2, missing_jobs.load, EF, [merged] * 2, True)[0][0] == []


def test_a_state_stays_as_it_was_while_training_goes_on(pool):
    texts = [
        EF,
        EF21,
        "ef(powersgd(rank=2))",
        "dgc(topk(density=0.05))",
        CONTROLLED,
        'ef(qsgd(), residual_dtype="int8")',
    ]
    assert pool.run(2, missing_jobs.keep_state, texts) == [[], []]
    options = {"composition": EF, "sync_every": 2, "outer_optimizer": "nesterov()"}
    for extra in ({}, {"overlap": True}, {"optimizer_state": "ef21(topk(density=0.5))"}):
        pool.run(2, missing_jobs.keep_local_state, {**options, **extra})


def test_local_training_continues_without_a_ranks_memory(pool):
    options = {
        "composition": "ef(topk(density=0.1))", "sync_every": 4, "outer_optimizer": "nesterov()",
        "optimizer_state": "ef21(topk(density=0.5))",
    }  # fmt: skip
    stored = pool.run(2, missing_jobs.load_local, options, None, True)[0]
    partial = without(stored, 1)
    for kind, text in pool.run(2, missing_jobs.load_local, options, partial, True):
        assert kind == "CheckpointError" and "memory of rank 1" in text
    (dropped, first, after), (same, second, later) = pool.run(2, missing_jobs.load_local, options, partial, False)
    assert dropped == same and len(dropped) == 2 and "EF21's estimate" in dropped[1]
    assert first["rounds"] == second["rounds"] == 1 and after["rounds"] == later["rounds"] == 2
    for part in ("anchor", "momentum"):
        assert_same(first[part], second[part])
        assert_same(first[part], stored["rank0"][part])
        assert_same(after[part], later[part])  # the round gave both the same
    assert_same(first["exchanger"], stored["rank0"]["exchanger"])
    for name, flat in second["exchanger"]["layers"].items():
        assert not any(bool(torch.as_tensor(leaf).any()) for leaf in flat.values()), name
    assert mean_estimates(after)
    assert_same(mean_estimates(after), mean_estimates(later))


def mean_estimates(state):
    layers = state["moments"]["exchanger"]["layers"]
    return {name: flat["mean_estimate"] for name, flat in layers.items() if "mean_estimate" in flat}


def test_of_many_missing_ranks_a_few_are_named():
    with pytest.raises(CheckpointError, match=r"ranks 1, 2, 3, 4, 5, 6, 7, 8, \.\.\. \(63 in all\) is missing"):
        StoredRanks(64, ((0,),) * 64).check(strict=True)
    StoredRanks(64, tuple((rank,) for rank in range(64))).check(strict=True)
    StoredRanks(3, ((0, 1, 2),)).check(strict=True)
