"""Gossip: the algorithms of Tolstobrov (2022), neighbors of a bad rank, and compositions that are refused."""

import pytest
import torch

from helpers.cases import draw
from thinwire import Exchanger, IncompatibleParts, Meter, TensorSpec, World, lockstep, parse, to_text
from thinwire.core import accepts_weights, is_lossless, topology_of, tracks_peer_copies
from thinwire.testing import reduce_all
from thinwire.topologies import Ring, Rotating, mixing_matrix


def gradient(weights, rank, step):
    return weights - draw("gaussian", weights.shape, torch.float64, 100 * rank + step)


def algorithm_2(weights, steps, rate, threshold=None):
    """Tolstobrov (2022), Algorithm 2, as printed; with a threshold Alg. 3: only components above it travel and change anything."""
    size, s = len(weights), 1
    for step in range(steps):
        g = [gradient(w, i, step) for i, w in enumerate(weights)]
        if threshold is not None:
            g = [torch.where(x.abs() > threshold, x, 0.0) for x in g]
        new = []
        for i in range(size):
            r, left = (i + s) % size, (i - s + size) % size
            new.append(weights[i] - rate / 3 * (g[left] + g[i] + g[r]))
        weights = new
        s += 1
        if s > size / 2:
            s = 1
    return weights


@pytest.mark.parametrize("size", (2, 3, 4, 5, 8))
@pytest.mark.parametrize(
    ("text", "threshold"), [("gossip(identity(), rotating())", None), ("gossip(threshold(tau=0.7), rotating())", 0.7)]
)
def test_values_follow_the_published_algorithms_2_and_3(text, threshold, size):
    aggregator, start = parse(text), [draw("gaussian", (40,), torch.float64, 7) for _ in range(size)]
    weights = start
    for step in range(9):
        outs = reduce_all(aggregator, [gradient(w, i, step) for i, w in enumerate(weights)], step=step)
        weights = [w - 0.1 * out.value for w, out in zip(weights, outs, strict=True)]
    for ours, printed in zip(weights, algorithm_2(start, 9, 0.1, threshold), strict=True):
        torch.testing.assert_close(ours, printed, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("text", ("topk(density=0.1)", "qsgd()", "sign()"))
def test_a_complete_graph_is_a_gather_to_the_last_bit(text):
    tensors = [draw("gaussian", (33, 5), seed=rank) for rank in range(5)]
    mixed = reduce_all(parse(f"gossip({text}, complete())"), tensors)
    gathered = reduce_all(parse(f"gather({text})"), tensors)
    for a, b in zip(mixed, gathered, strict=True):
        assert torch.equal(a.value, b.value) and torch.equal(a.sent, b.sent)


@pytest.mark.parametrize("name", ("ring()", "torus()", "exponential()", "star()", "rotating()", "hypercube()"))
def test_values_are_the_matrix_times_the_tensors(name):
    aggregator = parse(f"gossip(identity(), {name})")
    tensors = [draw("gaussian", (12,), torch.float64, rank) for rank in range(8)]
    for step in range(5):
        outs = reduce_all(aggregator, tensors, step=step)
        expected = mixing_matrix(aggregator.topology, 8, step) @ torch.stack(tensors)
        torch.testing.assert_close(torch.stack([out.value for out in outs]), expected)


def test_the_self_term_may_be_exact():
    tensors = [draw("gaussian", (50,), torch.float64, rank) for rank in range(4)]
    exact = reduce_all(parse('gossip(topk(k=5), ring(), self_term="exact")'), tensors)
    lossy = reduce_all(parse("gossip(topk(k=5), ring())"), tensors)
    for tensor, a, b in zip(tensors, exact, lossy, strict=True):
        torch.testing.assert_close(a.value, b.value + (tensor - b.sent) / 3)


def test_neighbors_of_a_bad_rank_mix_without_it_and_keep_their_mean():
    size, layers = 5, [TensorSpec("w", (8,), torch.float64)]
    exchangers = [Exchanger(layers, parse("gossip(identity(), ring())")) for _ in range(size)]
    tensors = [draw("gaussian", (8,), torch.float64, rank) for rank in range(size)]
    spoiled = [t.clone() for t in tensors]
    spoiled[2][3] = float("nan")
    outs = lockstep(
        [e.run_step({"w": t}, 0, World(r, size)) for r, (e, t) in enumerate(zip(exchangers, spoiled, strict=True))]
    )
    assert bool(outs[2]["w"].isnan().all())
    good = [0, 1, 3, 4]
    mean = sum(outs[r]["w"] for r in good) / 4
    torch.testing.assert_close(mean, sum(tensors[r] for r in good) / 4)
    torch.testing.assert_close(outs[1]["w"], (tensors[0] + 2 * tensors[1]) / 3)
    torch.testing.assert_close(outs[0]["w"], (tensors[4] + tensors[0] + tensors[1]) / 3)
    assert [e.skipped_steps for e in exchangers] == [0, 0, 1, 0, 0]


def test_a_rank_that_is_bad_later_in_a_step_keeps_what_neighbors_received_from_it():
    layers = [TensorSpec("a", (20,)), TensorSpec("b", (20,))]
    exchangers = [Exchanger(layers, parse("ef(gossip(topk(k=2), ring()))")) for _ in range(3)]

    def step(exchanger, rank):
        world = World(rank, 3)
        yield from exchanger.begin(0, world)
        first = yield from exchanger.exchange({"a": draw("gaussian", (20,), seed=rank)}, 0, world)
        bad = torch.full((20,), float("inf")) if rank == 1 else draw("gaussian", (20,), seed=rank)
        second = yield from exchanger.exchange({"b": bad}, 0, world)
        return first, second, exchanger.settle()

    outs = lockstep([step(e, rank) for rank, e in enumerate(exchangers)])
    assert [good for *_, good in outs] == [True, False, True]
    assert bool(outs[1][1]["b"].isnan().all()) and bool(outs[0][1]["b"].isfinite().all())
    assert exchangers[1].states["a"].residual.count_nonzero() == 18
    assert exchangers[1].states["b"].residual.count_nonzero() == 0


def test_error_feedback_makes_sparse_gossip_reach_the_mean_gradient():
    """Over many steps each rank has taken in what its neighbourhood sent, nothing missing."""
    aggregator, states = parse("ef(gossip(topk(density=0.1), ring()))"), None
    tensors = [draw("gaussian", (50,), torch.float64, rank) for rank in range(4)]
    total = [torch.zeros(50, dtype=torch.float64) for _ in range(4)]
    for step in range(400):
        outs = reduce_all(aggregator, tensors, states, step)
        states, total = [o.state for o in outs], [t + o.value for t, o in zip(total, outs, strict=True)]
    expected = mixing_matrix(Ring(), 4) @ torch.stack(tensors)
    assert float((torch.stack(total) / 400 - expected).abs().max()) < 0.1


def test_traffic_is_one_payload_per_neighbor():
    for name, neighbors in (("ring()", 2), ("rotating()", 2), ("exponential()", 3), ("complete()", 7), ("torus()", 3)):
        meters = [Meter() for _ in range(8)]
        reduce_all(parse(f"gossip(identity(), {name})"), [torch.ones(100) for _ in range(8)], meters=meters)
        for meter in meters:
            row = meter.sum_by("kind")["values"]
            assert (row.payload_bytes, row.sent_bytes, row.received_bytes) == (400, 400 * neighbors, 400 * neighbors)


def test_memories_that_need_one_mean_for_all_refuse_gossip():
    with pytest.raises(IncompatibleParts, match=r"EF21 needs the mean over all ranks; over Ring .*Use ef\(gossip"):
        parse("ef21(gossip(topk(density=0.1), ring()))")
    for memory in ("ef", "dgc", "ef21"):
        with pytest.raises(IncompatibleParts, match="CHOCO loses nothing of its input"):
            parse(f"{memory}(choco(topk(density=0.1), ring()))")


def test_core_tells_what_a_composition_does_to_replicas_and_weights():
    assert topology_of(parse("ef(topk(density=0.1))")) is None and topology_of(parse("ring_all_reduce()")) is None
    assert topology_of(parse("ef(gossip(topk(density=0.1), ring()))")) == Ring()
    assert topology_of(parse("switch(gossip(qsgd(), ring()), gossip(qsgd(), rotating()))")) == Rotating()
    exact = (
        "dense()",
        "identity()",
        "ring_all_reduce()",
        "parameter_server(identity())",
        "gossip(identity(), rotating())",
        "ef(dense())",
    )
    lossy = (
        "qsgd()",
        "vote()",
        "powersgd(rank=1)",
        "gossip(topk(k=3), ring())",
        "parameter_server(identity(), downlink=sign())",
    )
    for text in exact:
        assert is_lossless(parse(text)) and accepts_weights(parse(text)), text
    for text in lossy:
        assert not is_lossless(parse(text)) and not accepts_weights(parse(text)), text
    assert accepts_weights(parse("choco(topk(k=3), ring())")) and tracks_peer_copies(parse("choco(topk(k=3), ring())"))
    assert not is_lossless(parse("switch(dense(), sign())"))


@pytest.mark.parametrize(
    "text",
    (
        "ef(gossip(topk(density=0.01), ring()))",
        "gossip(threshold(tau=0.01), rotating(equal_pairs=true))",
        "choco(topk(density=0.1), exponential(), gamma=0.3)",
        "gossip(identity(), matrix(rows=((0.5, 0.5), (0.5, 0.5))))",
        'gossip(qsgd(), star(center=1), self_term="exact")',
        "parameter_server(topk(density=0.1), downlink=qsgd(), shards=2)",
        "ring_all_reduce()",
    ),
)
def test_compositions_are_written_as_they_were_read(text):
    assert to_text(parse(text)) == text and parse(to_text(parse(text))) == parse(text)
