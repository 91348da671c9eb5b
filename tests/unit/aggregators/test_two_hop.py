import pytest
import torch

from helpers.cases import draw
from thinwire import IncompatibleParts, Meter, TensorSpec, World, lockstep, parse
from thinwire.core import Context, derive_key
from thinwire_lab.bench.scaling import sent_bytes


def reduce_all(text, tensors):
    aggregator, spec, size = parse(text), TensorSpec.of("layer", tensors[0]), len(tensors)
    states = [aggregator.init(spec, derive_key(0)) for _ in tensors]
    meters = [Meter() for _ in tensors]
    programs = [aggregator.reduce(t, spec, states[r], Context(0, World(r, size))) for r, t in enumerate(tensors)]
    return lockstep(programs, meters), meters


@pytest.mark.parametrize("text", ("two_hop(qsgd(bits=4))", "two_hop(topk(density=0.02))", "vote()"))
def test_bytes_of_a_worker_stay_below_two_payloads_from_2_to_64_workers(text):
    numel = 1 << 16
    one = parse(text.replace("two_hop", "gather")) if text != "vote()" else parse("sign()")
    payload = one.compressor.num_bytes(TensorSpec("layer", (numel,)))
    for workers in (2, 8, 64):
        overhead = 70 * workers  # headers, lengths and a scale or two for each piece
        assert sent_bytes(text, workers, numel) <= 2.1 * payload + overhead
    if text != "vote()":
        assert sent_bytes(text.replace("two_hop", "gather"), 64, numel) > 60 * payload  # what it is for


def test_an_owner_keeps_no_more_than_its_share():
    tensors = [draw("gaussian", (1000,), seed=r) for r in range(4)]
    for text in ("two_hop(topk(density=0.1))", "two_hop(topk(k=100))"):
        outs, _ = reduce_all(text, tensors)
        assert int(outs[0].value.count_nonzero()) <= 100
        pieces = outs[0].value.split(250)
        assert all(int(piece.count_nonzero()) <= 25 for piece in pieces)


def test_the_error_of_the_second_hop_is_in_the_owners_residual():
    tensors = [draw("gaussian", (40,), torch.float64, r) for r in range(4)]
    outs, _ = reduce_all("ef(two_hop(topk(density=0.1)))", tensors)
    left = sum(out.state.residual for out in outs) / 4
    mean = sum(tensors) / 4
    torch.testing.assert_close(outs[0].value + left, mean)


def test_a_sparse_compressor_selects_over_the_whole_tensor():
    """All large numbers lie in one owner's range; a choice piece by piece would send small ones of the others."""
    tensor = torch.zeros(100)
    tensor[:10] = torch.arange(10, 0, -1)
    tensor[50] = 0.5
    outs, _ = reduce_all("two_hop(topk(k=10))", [tensor, tensor])
    assert outs[0].value[:10].count_nonzero() == 5  # the owner's share of ten
    assert outs[0].value[50] == 0


def test_the_majority_decides():
    tensors = [
        torch.tensor([1.0, -1.0, 1.0, -1.0]),
        torch.tensor([1.0, -1.0, -1.0, -1.0]),
        torch.tensor([-4.0, 4.0, 4.0, -4.0]),
    ]
    outs, _ = reduce_all("vote()", tensors)
    assert outs[0].value.tolist() == [2.0, -2.0, 2.0, -2.0]  # the mean of 1, 1 and 4


def test_layers_fuse_into_one_message_per_hop():
    from thinwire import Exchanger

    layers = [TensorSpec(f"l{i}", (50 + i,)) for i in range(5)]
    exchangers = [Exchanger(layers, parse("two_hop(qsgd())")) for _ in range(3)]
    meters = [Meter() for _ in range(3)]
    tensors = [{s.name: draw("gaussian", s.shape, seed=r) for s in layers} for r in range(3)]
    lockstep([e.run_step(tensors[r], 0, World(r, 3)) for r, e in enumerate(exchangers)], meters)
    assert meters[0].total().requests == 2


def test_schedules_go_from_start_to_end():
    from thinwire.aggregators.density_schedule import density_at

    for shape in ("linear", "cosine", "exponential", "dgc"):
        for start, end in ((0.25, 0.001), (0.01, 0.5)):
            path = [density_at(i / 100, start, end, shape) for i in range(101)]
            assert path[0] == pytest.approx(start) and path[-1] == pytest.approx(end)
            assert path == sorted(path, reverse=start > end)
    stages = [density_at(i / 5, 0.25, 0.25 / 4**4, "dgc") for i in range(5)]
    assert stages == pytest.approx([0.25, 0.0625, 0.015625, 0.00390625, 0.0009765625])


def test_a_schedule_needs_a_density():
    with pytest.raises(IncompatibleParts, match="DensitySchedule changes a density; GatherMean has none"):
        parse("scheduled(qsgd())")
