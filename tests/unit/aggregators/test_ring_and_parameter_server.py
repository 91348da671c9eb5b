"""Ring all-reduce and parameter server: results, and the traffic of the table in docs/topologies.md."""

import pytest
import torch

from helpers.cases import draw
from thinwire import CompositionError, Exchanger, Meter, TensorSpec, World, lockstep, parse
from thinwire.testing import reduce_all

HEADER = "header"


def metered(text, tensors):
    meters = [Meter() for _ in tensors]
    return reduce_all(parse(text), tensors, meters=meters), [meter.sum_by("kind") for meter in meters]


@pytest.mark.parametrize("size", (1, 2, 3, 5, 8))
@pytest.mark.parametrize("numel", (0, 1, 3, 64, 101))
def test_a_ring_gives_all_ranks_the_same_bits_by_messages_to_the_next_rank(size, numel):
    tensors = [draw("gaussian", (numel,), seed=rank) for rank in range(size)]
    outs, kinds = metered("ring_all_reduce()", tensors)
    for out in outs:
        assert torch.equal(out.value, outs[0].value)
        torch.testing.assert_close(out.value, sum(tensors) / size)
    for kind in kinds:
        assert size == 1 or kind[HEADER].requests == 2 * (size - 1)
    total = sum(kind["values"].sent_bytes for kind in kinds if "values" in kind)
    assert total == 2 * (size - 1) * 4 * numel  # 2d(n-1)/n, n times


def test_a_ring_of_equal_shards_loads_every_rank_alike():
    _, kinds = metered("ring_all_reduce()", [torch.ones(64) for _ in range(4)])
    for kind in kinds:
        assert kind["values"].sent_bytes == kind["values"].received_bytes == 2 * 256 * 3 / 4


def test_a_server_receives_from_all_and_answers_all():
    size, dense = 5, 400
    _, kinds = metered("parameter_server(identity())", [torch.ones(100) for _ in range(size)])
    values = [(kind["values"].sent_bytes, kind["values"].received_bytes) for kind in kinds]
    assert values == [((size - 1) * dense, (size - 1) * dense)] + [(dense, dense)] * (size - 1)


@pytest.mark.parametrize("shards", (2, 4))
def test_sharded_servers_share_the_load(shards):
    size, dense = 8, 400
    _, kinds = metered(f"parameter_server(identity(), shards={shards})", [torch.ones(100) for _ in range(size)])
    shard_bytes = dense // shards
    for rank, kind in enumerate(kinds):
        others = (shards - (rank < shards)) * shard_bytes  # shards of other owners: sent there, and received back
        served = (size - 1) * shard_bytes * (rank < shards)
        assert kind["values"].sent_bytes == kind["values"].received_bytes == others + served


@pytest.mark.parametrize("size", (1, 2, 3, 5))
def test_shards_do_not_change_the_result(size):
    tensors = [draw("gaussian", (33, 5), seed=rank) for rank in range(size)]
    whole = reduce_all(parse("parameter_server(identity())"), tensors)[0].value
    torch.testing.assert_close(whole, sum(tensors) / size)
    for shards in (2, 3, 64):
        for out in reduce_all(parse(f"parameter_server(identity(), shards={shards})"), tensors):
            assert torch.equal(out.value, whole)


def test_one_shard_per_rank_is_a_two_hop():
    tensors = [draw("gaussian", (60,), seed=rank) for rank in range(4)]
    hop = reduce_all(parse("two_hop(topk(density=0.2))"), tensors)
    served = reduce_all(parse("parameter_server(topk(density=0.2), downlink=topk(density=0.2), shards=4)"), tensors)
    for a, b in zip(hop, served, strict=True):
        assert torch.equal(a.value, b.value) and torch.equal(a.sent, b.sent)


def test_shards_are_counted_from_one():
    with pytest.raises(CompositionError, match="shards must be at least 1, got 0"):
        parse("parameter_server(qsgd(), shards=0)")


@pytest.mark.parametrize(
    "text",
    ("ring_all_reduce()", "parameter_server(qsgd(), shards=2)", "ef(parameter_server(topk(k=3), downlink=sign()))"),
)
def test_layers_share_messages_and_all_ranks_learn_of_a_bad_rank(text):
    layers = [TensorSpec("a", (40,)), TensorSpec("b", (7, 3)), TensorSpec("c", (5,), torch.bfloat16)]
    for size in (1, 2, 4):
        for bad in range(size):
            exchangers, meters = [Exchanger(layers, parse(text)) for _ in range(size)], [Meter() for _ in range(size)]
            tensors = [{s.name: draw("gaussian", s.shape, s.dtype, r) for s in layers} for r in range(size)]
            tensors[bad]["b"][0, 0] = float("inf")
            pairs = enumerate(zip(exchangers, tensors, strict=True))
            outs = lockstep([e.run_step(t, 0, World(r, size)) for r, (e, t) in pairs], meters)
            assert all(bool(value.isnan().all()) for out in outs for value in out.values())
            assert all(e.skipped_steps == 1 for e in exchangers)
            most = 2 * (size - 1) if text == "ring_all_reduce()" else 2
            assert all(meter.total().requests <= max(1, most) for meter in meters)


@pytest.mark.parametrize("dtype", (torch.float16, torch.float32))
@pytest.mark.parametrize("size", (2, 3, 5, 6, 7))
@pytest.mark.parametrize("text", ("ring_all_reduce()", "parameter_server(identity())"))
def test_the_average_of_the_largest_numbers_stays_finite(text, size, dtype):
    most = torch.finfo(dtype).max
    tensor = torch.tensor([most, -most] * 4, dtype=dtype)
    exchangers = [Exchanger([TensorSpec("w", (8,), dtype)], parse(text)) for _ in range(size)]
    for got in lockstep([e.run_step({"w": tensor}, 0, World(r, size)) for r, e in enumerate(exchangers)]):
        assert torch.allclose(got["w"].double(), tensor.double(), rtol=1e-2)
