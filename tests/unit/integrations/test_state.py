"""What a handle remembers: stored, gathered, resumed, and handed to a world of another size."""

import pytest
import torch

from helpers import ddp_jobs as jobs
from helpers.cases import STRUCTURE_TEXTS
from thinwire import parse
from thinwire.core import IncompatibleParts, topology_of

BUCKETS = {"one bucket": 100.0, "many buckets": 0.002}  # DDP's size of a bucket in MB
GROUPS = 4  # of compositions that share a job
EQUAL = [text for text in STRUCTURE_TEXTS if topology_of(parse(text)) is None]  # DDP's replicas must be


@pytest.mark.parametrize(
    ("group", "cap_mb"), [*((g, BUCKETS["many buckets"]) for g in range(GROUPS)), (0, BUCKETS["one bucket"])]
)
def test_a_resumed_job_continues_bit_for_bit_with_every_structure(pool, group, cap_mb):
    different = pool.run(2, jobs.resume_each, EQUAL[group::GROUPS], cap_mb, within_s=120.0)
    assert different == [[], []]


@pytest.mark.parametrize("stop", (1, 3, 5))
@pytest.mark.parametrize(
    "composition", ("ef(powersgd(rank=2))", 'ef(qsgd(bits=4), residual_dtype="int8")', "dgc(topk(k=9))")
)
def test_it_does_not_matter_when_a_job_was_stopped(pool, composition, stop):
    assert pool.run(2, jobs.resume, composition, 0.002, 6, stop) == [True, True]


@pytest.mark.parametrize(
    "composition", ("ef(topk(density=0.05))", 'ef(qsgd(bits=4), residual_dtype="int8")', "ef21(topk(density=0.05))")
)
@pytest.mark.parametrize(("before", "after"), ((4, 2), (2, 4), (4, 3), (3, 1)))
def test_another_world_size_keeps_the_mean_of_what_was_not_sent(pool, composition, before, after):
    stored = pool.run(before, jobs.save_state, composition)[0]
    resumed = pool.run(after, jobs.load_state, composition, stored)
    for name, memory in stored["rank0"]["layers"].items():
        for leaf in (leaf for leaf in memory if leaf in ("residual", "own_estimate")):
            old = sum(stored[f"rank{r}"]["layers"][name][leaf].double() for r in range(before)) / before
            new = sum(state["layers"][name][leaf].double() for state in resumed) / after
            torch.testing.assert_close(new, old, rtol=1e-6, atol=1e-6 * float(old.abs().max() + 1e-30))


def test_on_request_every_rank_gets_all_ranks_states(pool):
    states = pool.run(3, jobs.save_state, "ef(topk(density=0.05))")
    for state in states:
        assert set(state) == {"world_size", "composition", "rank0", "rank1", "rank2"}
        for rank in range(3):
            residual = state[f"rank{rank}"]["layers"]["second.weight"]["residual"]
            assert torch.equal(residual, states[rank][f"rank{rank}"]["layers"]["second.weight"]["residual"])


@pytest.mark.parametrize(
    "composition", ("ef(topk(density=0.05))", 'ef(qsgd(bits=4), residual_dtype="int8")', "ef21(topk(density=0.05))")
)
def test_torchs_distributed_checkpoints_take_a_wire_as_it_is(pool, tmp_path, composition):
    assert pool.run(2, jobs.resume_by_dcp, composition, str(tmp_path)) == [(True, 6, True)] * 2


def test_gossip_is_refused_because_ddps_replicas_are_equal(pool):
    for kind, text in pool.run(2, jobs.refusal, "ef(gossip(topk(density=0.1), ring()))"):
        assert kind == IncompatibleParts.__name__ and "equal replicas" in text and "thinwire.local" in text
