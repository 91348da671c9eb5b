"""What a wire remembers: stored, gathered, resumed, and handed to a world of another size."""

import pytest
import torch

import ddp_jobs as jobs

COMPOSITIONS = (
    "ef(topk(density=0.05))",
    "ef(powersgd(rank=2))",
    "ef21(topk(density=0.05))",
    "scam(topk(density=0.05))",
    "dgc(topk(density=0.05))",
    'ef(qsgd(bits=4), residual="int8")',
    'ef(sign(), residual="bf16")',
    "randomk(density=0.2)",
)


@pytest.mark.parametrize("cap_mb", (100.0, 0.002), ids=("one bucket", "many buckets"))
@pytest.mark.parametrize("composition", COMPOSITIONS)
def test_a_resumed_job_continues_bit_for_bit(pool, composition, cap_mb):
    assert pool.run(2, jobs.resume, composition, cap_mb) == [True, True]


@pytest.mark.parametrize(
    "composition", ("ef(topk(density=0.05))", 'ef(qsgd(bits=4), residual="int8")', "ef21(topk(density=0.05))")
)
@pytest.mark.parametrize(("before", "after"), ((4, 2), (2, 4), (4, 3), (3, 1)))
def test_another_world_size_keeps_the_mean_of_what_was_not_sent(pool, composition, before, after):
    stored = pool.run(before, jobs.save_state, composition)[0]
    resumed = pool.run(after, jobs.load_state, composition, stored)
    for name, memory in stored["rank0"]["layers"].items():
        for leaf in (leaf for leaf in memory if leaf in ("residual", "local")):
            old = sum(stored[f"rank{r}"]["layers"][name][leaf].double() for r in range(before)) / before
            new = sum(state["layers"][name][leaf].double() for state in resumed) / after
            torch.testing.assert_close(new, old, rtol=1e-6, atol=1e-6 * float(old.abs().max() + 1e-30))


def test_every_rank_gets_all_ranks_states(pool):
    states = pool.run(3, jobs.save_state, "ef(topk(density=0.05))")
    for state in states:
        assert set(state) == {"world_size", "rank0", "rank1", "rank2"}
        for rank in range(3):
            residual = state[f"rank{rank}"]["layers"]["second.weight"]["residual"]
            assert torch.equal(residual, states[rank][f"rank{rank}"]["layers"]["second.weight"]["residual"])
