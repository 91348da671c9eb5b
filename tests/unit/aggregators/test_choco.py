"""CHOCO: consensus on whole tensors over compressed gossip."""

import pytest
import torch

from helpers.cases import draw
from thinwire import Exchanger, IncompatibleParts, TensorSpec, World, lockstep, parse
from thinwire.testing import reduce_all
from thinwire.topologies import Ring, mixing_matrix


def consensus(tensors):
    mean = sum(tensors) / len(tensors)
    return float(sum((t - mean).square().sum() for t in tensors)) / len(tensors)


@pytest.mark.parametrize("text", ("topk(density=0.1)", "qsgd(bits=3)", "randomk(density=0.2, scaled=false)"))
def test_ranks_reach_consensus_at_the_mean_they_started_with(text):
    aggregator, states = parse(f"choco({text}, ring(), gamma=0.15)"), None
    tensors = [draw("gaussian", (50,), torch.float64, rank) for rank in range(6)]
    mean, apart = sum(tensors) / 6, consensus(tensors)
    for step in range(400):
        outs = reduce_all(aggregator, tensors, states, step)
        tensors, states = [out.value for out in outs], [out.state for out in outs]
        torch.testing.assert_close(sum(tensors) / 6, mean)
    assert consensus(tensors) < 1e-3 * apart


def test_plain_lossy_gossip_of_the_same_tensors_does_not_reach_consensus():
    aggregator = parse("gossip(topk(density=0.1), ring())")
    tensors = [draw("gaussian", (50,), torch.float64, rank) for rank in range(6)]
    mean = sum(tensors) / 6
    for step in range(50):
        tensors = [out.value for out in reduce_all(aggregator, tensors, step=step)]
    assert float((sum(tensors) / 6 - mean).norm()) > 0.5 * float(mean.norm())


def test_values_follow_the_recursion_of_the_paper():
    """Against every rank's copies kept one by one, in matrices."""
    aggregator, states, k = parse("choco(topk(k=4), ring(), gamma=0.3)"), None, mixing_matrix(Ring(), 5)
    tensors = [draw("gaussian", (20,), torch.float64, rank) for rank in range(5)]
    x, estimate = torch.stack(tensors), torch.zeros(5, 20, dtype=torch.float64)
    for step in range(10):
        outs = reduce_all(aggregator, list(x), states, step)
        states = [out.state for out in outs]
        difference = x - estimate
        largest = difference.abs().topk(4, dim=1).indices
        estimate = estimate + torch.zeros_like(difference).scatter(1, largest, difference.gather(1, largest))
        x = x + 0.3 * (k @ estimate - estimate)
        torch.testing.assert_close(torch.stack([out.value for out in outs]), x)
        torch.testing.assert_close(torch.stack([state.own_estimate for state in states]), estimate)


def test_topologies_that_change_are_refused():
    for topology, name in (("rotating()", "Rotating"), ("exponential(one_peer=true)", "Exponential")):
        with pytest.raises(IncompatibleParts, match=f"Choco keeps an estimate .*; {name} changes neighbors"):
            parse(f"choco(topk(density=0.1), {topology})")


def test_estimates_stay_consistent_through_a_bad_step_of_one_rank():
    """A rank's mixed estimate is K times the ranks' own estimates, whichever rank was excluded at which step."""
    size, layers = 5, [TensorSpec("w", (30,), torch.float64)]
    exchangers = [Exchanger(layers, parse("choco(topk(k=3), ring())")) for _ in range(size)]
    k = mixing_matrix(Ring(), size)
    for step in range(12):
        tensors = [draw("gaussian", (30,), torch.float64, 10 * step + rank) for rank in range(size)]
        if step % 3 == 1:
            tensors[step % size][4] = float("nan")
        outs = lockstep(
            [
                e.run_step({"w": t}, step, World(r, size))
                for r, (e, t) in enumerate(zip(exchangers, tensors, strict=True))
            ]
        )
        bad = [bool(out["w"].isnan().any()) for out in outs]
        assert bad == [step % 3 == 1 and rank == step % size for rank in range(size)]
        own = torch.stack([e.states["w"].own_estimate for e in exchangers])
        torch.testing.assert_close(torch.stack([e.states["w"].mixed_estimate for e in exchangers]), k @ own)
