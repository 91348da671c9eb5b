"""The bare hook, the yardstick of the DDP benchmark: it loses nothing, and all ranks get the same average."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.bench_jobs import train_with_plain_ddp_and_bare_hook
from thinwire.kernels import take_largest
from thinwire_lab.bench.bare_hook import BucketState, count_position_bytes


@given(st.integers(1, 5000), st.floats(0.001, 1.0), st.integers(0, 2**31), st.booleans())
@settings(max_examples=60, deadline=None)
def test_coded_positions_never_exceed_their_bound(numel, density, seed, clustered):
    count = max(1, round(density * numel))
    values = torch.randn(numel, generator=torch.Generator().manual_seed(seed))
    values = values.abs().sort().values if clustered else values
    assert take_largest(values, torch.zeros(numel), count).coded.data.numel() <= count_position_bytes(count, numel)


def test_what_was_sent_and_the_residual_are_the_gradients_and_the_old_residual():
    numel, count = 1000, 30
    states = [BucketState(numel, count, [torch.zeros(4096, dtype=torch.uint8) for _ in range(2)]) for _ in range(2)]
    for step in range(3):
        numbers = torch.Generator().manual_seed(step)
        gradients = [torch.randn(numel, generator=numbers) for _ in range(2)]
        targets = [gradient + state.residual for gradient, state in zip(gradients, states, strict=True)]
        for rank, state in enumerate(states):
            message = state.encode(gradients[rank], rank)
            states[1 - rank].messages[rank].copy_(message)
        for rank, state in enumerate(states):
            state.decode(gradients[rank])
        sent = [target - state.residual for target, state in zip(targets, states, strict=True)]
        assert all(int(each.count_nonzero()) == count for each in sent)
        assert torch.equal(gradients[0], gradients[1])
        assert torch.allclose(gradients[0], (sent[0] + sent[1]) / 2, atol=1e-6)


@pytest.mark.parametrize("size", (2, 3))
def test_a_hook_that_sends_everything_trains_as_plain_ddp_does(pool, size):
    for plain, bare in pool.run(size, train_with_plain_ddp_and_bare_hook, 1.0, 4):
        for name, weight in plain.items():
            assert torch.allclose(weight, bare[name], atol=1e-5), name


def test_all_ranks_have_the_same_weights_after_sparse_steps(pool):
    (_, first), (plain, second) = pool.run(2, train_with_plain_ddp_and_bare_hook, 0.05, 4)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(plain[name], second[name]) for name in first)
