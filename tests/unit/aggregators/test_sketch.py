"""Sparse all-reduce by sketches and on the union of supports: the same average as a gather."""

import logging

import pytest
import torch

from helpers.cases import draw
from thinwire import Exchanger, Meter, TensorSpec, World, lockstep, parse
from thinwire.core import AllReduce, CompositionError, Context, ProtocolError, derive_key
from thinwire_lab.published.sketch_traffic import compare_traffic, union_size


def reduce_all(text, tensors, states=None, step=0):
    aggregator, spec, size = parse(text), TensorSpec.of("layer", tensors[0]), len(tensors)
    states = states or [aggregator.init(spec, derive_key(0)) for _ in tensors]
    meters = [Meter() for _ in tensors]
    pairs = enumerate(zip(tensors, states, strict=True))
    outs = lockstep([aggregator.reduce(t, spec, s, Context(step, World(r, size))) for r, (t, s) in pairs], meters)
    return outs, meters


def kinds(meter):
    return {kind for kind, traffic in meter.sum_by("kind").items() if kind != "header" and traffic.payload_bytes}


def sparse(workers, count, numel, overlap, dtype=torch.float64):
    order = torch.randperm(numel, generator=torch.Generator().manual_seed(3))
    step = {"identical": 0, "partly shared": count // 2, "disjoint": count}[overlap]
    tensors = []
    for rank in range(workers):
        at, values = order[rank * step : rank * step + count], draw("gaussian", (count,), dtype, rank)
        tensors.append(torch.zeros(numel, dtype=dtype).index_put_((at,), values))
    return tensors


ADDED = (
    "sketch(identity())",
    "sketch(identity(), cells=0.6)",
    'sketch(identity(), index="bloom", false_positive_rate=0.01)',
    "sketch(identity(), lanes=4)",
    "union(identity())",
    'union(identity(), index="bloom")',
)


@pytest.mark.parametrize("overlap", ("identical", "partly shared", "disjoint"))
@pytest.mark.parametrize("workers", (1, 2, 3, 8, 64))
@pytest.mark.parametrize("text", ADDED)
def test_the_average_is_that_of_the_inputs(text, workers, overlap):
    tensors = sparse(workers, 20, 4_000, overlap)
    outs, _ = reduce_all(text, tensors)
    for out, tensor in zip(outs, tensors, strict=True):
        assert torch.equal(out.value, outs[0].value) and torch.equal(out.sent, tensor)
    torch.testing.assert_close(outs[0].value, sum(tensors) / workers, rtol=0, atol=1e-13)


@pytest.mark.parametrize("workers", (1, 2, 8, 64))
@pytest.mark.parametrize("overlap", ("identical", "partly shared", "disjoint"))
@pytest.mark.parametrize("settings", ("", ", cells=0.6", ', cells=0.02, index="bloom"', ", lanes=4"))
def test_integers_are_averaged_to_the_last_bit(workers, overlap, settings):
    outs, _ = reduce_all(f"sketch(identity(), exact=true{settings})", sparse(workers, 20, 4_000, overlap))
    total = sum(out.sent for out in outs)  # in units of a power of two: nothing is rounded here
    assert torch.equal(outs[0].value * workers, total)
    assert float((outs[0].sent - sparse(workers, 20, 4_000, overlap)[0]).abs().max()) < 2.0**-20


def test_the_error_of_rounding_to_integers_stays_in_the_residual():
    tensors = sparse(2, 300, 4_000, "partly shared")
    tensors[0][tensors[0].nonzero()[0]] = 1e6  # a coarse unit for all
    outs, _ = reduce_all("ef(sketch(identity(), exact=true))", tensors)
    lost = sum(out.state.residual for out in outs)
    assert float(lost.abs().max()) > 1e-5
    torch.testing.assert_close(2 * outs[0].value + lost, sum(tensors), rtol=1e-14, atol=1e-14)


def test_too_few_cells_are_known_repaired_counted_and_reported(caplog):
    tensors = sparse(4, 100, 4_000, "disjoint")
    states = None
    for step in range(3):
        with caplog.at_level(logging.WARNING, "thinwire"):
            outs, meters = reduce_all("sketch(identity(), cells=0.1)", tensors, states, step)
        states = [out.state for out in outs]
        torch.testing.assert_close(outs[0].value, sum(tensors) / 4, rtol=0, atol=1e-13)
        assert all(kinds(meter) == {"index", "sketch", "repair"} for meter in meters)
    assert len(set(states)) == 1 and states[0].failures == 3
    assert states[0].peeled + states[0].unpeeled == 1_200 and states[0].unpeeled > 600
    (record,) = caplog.records
    assert "of 400 values could not be peeled from 402 cells" in record.message


def test_cells_below_the_threshold_fail_and_a_few_more_succeed():
    """1.15 and 1.30 cells for each of 10,000 values."""
    tensors = sparse(2, 5_000, 200_000, "disjoint", torch.float32)
    for cells, failures in ((0.0575, 1), (0.065, 0)):
        outs, _ = reduce_all(f"sketch(identity(), cells={cells})", tensors)
        assert outs[0].state.failures == failures
        torch.testing.assert_close(outs[0].value, sum(tensors) / 2, rtol=0, atol=1e-5)


def test_a_sketch_that_waits_for_the_index_takes_a_key_that_peels():
    """Two values share all three cells once in a hundred times; then another key is taken, without a message."""
    state = None
    for step in range(300):
        tensors = sparse(2, 10, 400, "disjoint", torch.float32)
        outs, meters = reduce_all("sketch(identity())", tensors, state, step)
        state = [out.state for out in outs]
        assert kinds(meters[0]) == {"index", "sketch"}
    assert state[0] == (6_000, 0, 0)


def test_a_median_estimate_needs_no_message_and_its_error_stays_in_the_residual():
    tensors = sparse(4, 100, 4_000, "disjoint")
    outs, meters = reduce_all('ef(sketch(identity(), cells=0.1, on_failure="median"))', tensors)
    assert kinds(meters[0]) == {"index", "sketch"}
    assert outs[0].state.inner.failures == 1
    wrong = sum(tensors) / 4 - outs[0].value
    assert float(wrong.abs().max()) > 0.1
    torch.testing.assert_close(sum(out.state.residual for out in outs) / 4, wrong)


@pytest.mark.parametrize("settings", ("", ", cells=0.1", ', cells=0.1, on_failure="median"', ", cells=0.1, exact=true"))
def test_error_feedback_loses_nothing_whether_peeling_succeeds_or_not(settings):
    aggregator, states = f"ef(sketch(topk(density=0.05){settings}))", None
    given, sent = torch.zeros(900).double(), torch.zeros(900).double()
    for step in range(30):
        tensors = [draw("gaussian", (900,), torch.float64, 10 * step + r) for r in range(3)]
        outs, _ = reduce_all(aggregator, tensors, states, step)
        states = [out.state for out in outs]
        given, sent = given + sum(tensors), sent + 3 * outs[0].value
    torch.testing.assert_close(sent + sum(s.residual for s in states), given, rtol=1e-9, atol=1e-9)
    assert states[0].inner.failures > 20 or not settings


@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.bfloat16, torch.float64), ids=str)
@pytest.mark.parametrize("settings", ("", ", exact=true", ", cells=0.3", ', cells=0.3, on_failure="median"'))
def test_the_largest_numbers_stay_finite(dtype, settings):
    largest = torch.finfo(dtype).max
    for tensor in (draw("one huge", (1000,), dtype), torch.full((1000,), largest, dtype=dtype)):
        tensor[400:] = 0
        outs, _ = reduce_all(f"sketch(identity(){settings})", [tensor] * 5)
        assert bool(outs[0].value.isfinite().all() & outs[0].sent.isfinite().all())
        if "median" not in settings:
            torch.testing.assert_close(
                outs[0].value.double(), tensor.double(), rtol=1e-5, atol=1e-6 * float(tensor.double().abs().max())
            )


def test_tiny_numbers_are_not_lost():
    for settings in ("", ", exact=true"):
        tensor = draw("tiny", (500,))
        tensor[100:] = 0
        outs, _ = reduce_all(f"sketch(identity(){settings})", [tensor, tensor])
        torch.testing.assert_close(outs[0].value, tensor, rtol=1e-4, atol=1e-36)


def test_a_layer_that_is_shorter_than_its_sketch_is_sent_dense():
    small = [draw("gaussian", (50,), seed=r) for r in range(2)]
    for text, sent in (
        ("sketch(topk(k=3))", {"index", "values"}),
        ("sketch(topk(k=3), cells=0.5)", {"dense"}),
        ("sketch(identity())", {"index", "dense"}),
        ("union(topk(k=3))", {"index", "values"}),
    ):
        outs, meters = reduce_all(text, small)
        assert kinds(meters[0]) == sent, text
        torch.testing.assert_close(outs[0].value, (outs[0].sent + outs[1].sent) / 2)


def test_zeros_send_an_index_and_nothing_else():
    for text in ("sketch(identity())", "union(identity())"):
        outs, meters = reduce_all(text, [torch.zeros(800)] * 3)
        assert not outs[0].value.any() and kinds(meters[0]) == {"index"}


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("union(topk(density=0.02))", 2),
        ("sketch(topk(density=0.02))", 2),
        ("sketch(topk(density=0.02), cells=0.3)", 2),
        ("sketch(topk(density=0.02), cells=0.06)", 3),
        ("sketch(topk(density=0.02), exact=true)", 3),
        ('union(topk(density=0.02), index="bloom")', 3),
        ('sketch(topk(density=0.02), cells=0.3, index="bloom")', 2),
    ],
)
def test_layers_share_messages_that_carry_the_bad_step_flag(text, messages):
    layers = [TensorSpec(f"l{i}", (1500 + i,)) for i in range(4)]
    exchangers, meters = [Exchanger(layers, parse(text)) for _ in range(3)], [Meter() for _ in range(3)]
    tensors = [{s.name: draw("gaussian", s.shape, seed=r) for s in layers} for r in range(3)]
    lockstep([e.run_step(tensors[r], 0, World(r, 3)) for r, e in enumerate(exchangers)], meters)
    assert meters[0].total().requests == messages
    failures = [exchangers[0].state_dict()["layers"][s.name].get("failures", 0) for s in layers]
    assert failures == [int("0.06" in text)] * 4, "counts can be read from the memory, and are stored with it"


def test_a_damaged_message_is_found_where_sums_are_exact():
    aggregator, spec = parse("sketch(identity(), exact=true)"), TensorSpec("layer", (4_000,))
    (tensor,) = sparse(1, 100, 4_000, "identical", torch.float32)
    program = aggregator.reduce(tensor, spec, aggregator.init(spec, derive_key(0)), Context(0, World(0, 1)))
    request, answer = None, None
    with pytest.raises(ProtocolError, match="the sketch of layer is not empty after peeling"):
        while True:
            request = program.send(answer)
            answer = request.tensor.clone()
            if isinstance(request, AllReduce) and request.labels[0].kind == "sketch":
                answer[answer.eq(0).nonzero()[0]] ^= 1 << 12


def test_any_compressor_will_do_and_schedules_reach_it():
    tensors = [draw("gaussian", (700,), seed=r) for r in range(3)]
    for text in ("sketch(qsgd(bits=2))", "sketch(threshold(tau=2.0))", "union(sign())", "union(ternary())"):
        outs, _ = reduce_all(text, tensors)
        torch.testing.assert_close(outs[0].value, sum(out.sent for out in outs) / 3, rtol=1e-5, atol=1e-6)
    outs, _ = reduce_all("scheduled(sketch(topk(density=0.5)), start=0.02, end=0.01)", tensors)
    assert int(outs[0].sent.count_nonzero()) == 14


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sketch(topk(k=3), cells=1.5)", "cells must be a fraction of the tensor between 0 and 1, got 1.5"),
        ("sketch(topk(k=3), lanes=0)", "lanes must be at least 1, got 0"),
        ('sketch(topk(k=3), on_failure="hope")', "on_failure must be one of values, median, got 'hope'"),
        ('union(topk(k=3), index="list")', "index must be one of bitmap, bloom, got 'list'"),
        (
            'union(topk(k=3), index="bloom", false_positive_rate=0.0)',
            "false_positive_rate must be between 0 and 1, got 0.0",
        ),
        ("sketch(dense())", "expected a compressor"),
    ],
)
def test_settings_that_make_no_sense_are_refused(text, words):
    with pytest.raises(CompositionError, match=words.replace("(", r"\(")):
        parse(text)


@pytest.mark.parametrize("index", ("bitmap", "bloom"))
@pytest.mark.parametrize(
    ("density", "workers", "overlap"), [(0.01, 2, 1.0), (0.01, 8, 0.0), (0.05, 5, 1.0), (0.002, 4, 0.0)]
)
def test_formulas_say_what_the_meter_counts(density, workers, overlap, index):
    numel = 40_000
    count = round(density * numel)
    tensors = sparse(workers, count, numel, "identical" if overlap else "disjoint", torch.float32)
    expected = compare_traffic(density, workers, overlap, numel, index)
    inside = f"(topk(k={count})" + (', index="bloom")' if index == "bloom" else ")")
    for way, text in (("sketch", f"sketch{inside}"), ("union", f"union{inside}"), ("gather", f"topk(k={count})")):
        _, meters = reduce_all(text, tensors)
        sent = sum(m.total().sent_bytes - m.sum_by("kind")["header"].sent_bytes for m in meters) / workers
        assert sent == pytest.approx(expected.num_bytes[way], rel=0.03), way


def test_the_savings_are_those_of_the_formula_for_many_coordinates():
    """32 / (41.6 n/d + 1): 10.4 at 5 %, 22.6 at 1 %."""
    for density, saving in ((0.05, 10.4), (0.01, 22.6)):
        num_bytes = compare_traffic(density, 8, 1.0, 1 << 24).num_bytes
        assert num_bytes["dense"] / num_bytes["sketch"] == pytest.approx(saving, rel=0.01)


def test_when_a_sketch_pays():
    def first(density, overlap, rival):
        workers = range(2, round(1 / density) + 1)  # as many as can have supports of their own
        return next((w for w in workers if rival in compare_traffic(density, w, overlap, 1 << 22).costlier), None)

    assert first(0.05, 1.0, "gather") == 4 and first(0.01, 1.0, "gather") == 8
    assert first(0.05, 0.0, "gather") is None and first(0.01, 0.0, "gather") is None
    assert first(0.05, 1.0, "union") is None, "the values themselves are always fewer than the cells"
    assert compare_traffic(0.01, 16, 1.0).cheapest == "two_hop"  # which sends less of the average
    assert "dense" in compare_traffic(0.74, 4, 1.0).costlier and "dense" not in compare_traffic(0.75, 4, 1.0).costlier


def test_unions_grow_as_supports_differ():
    assert [union_size(100, 4, overlap, 1000) for overlap in (1.0, 0.5, 0.0)] == [100, 250, 400]
    assert union_size(100, 20, 0.0, 1000) == 1000
    assert union_size(100, 4, "independent", 1000) == round(1000 * (1 - 0.9**4))
    assert union_size(1000, 4, "independent", 1000) == 1000


def test_impossible_settings_of_the_estimate_are_refused():
    for arguments in ((0.0, 4), (0.1, 0), (0.1, 4, 1.5), (0.1, 4, "some"), (0.1, 4, 1.0, 100, "list")):
        with pytest.raises(CompositionError, match="compare_traffic: "):
            compare_traffic(*arguments)
