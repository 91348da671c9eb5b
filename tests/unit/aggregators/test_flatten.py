"""Layers flattened into one vector: the same result as one long layer, whatever buckets they come in."""

import math

import pytest
import torch

from helpers.cases import draw
from thinwire import Exchanger, IncompatibleParts, Meter, ProtocolError, TensorSpec, World, lockstep, parse
from thinwire.sync import LocalRounds, parse_sync
from thinwire.testing import assert_same

LAYERS = [TensorSpec("a", (8, 5)), TensorSpec("b", (30,)), TensorSpec("c", (2, 3, 4))]
FLAT = TensorSpec("flat", (sum(spec.numel for spec in LAYERS),))
RANKS = 3
TEXT = "ef(flatten(topk(density=0.1)))"


def tensors_of(step, rank, layers=LAYERS):
    sizes = {spec.name: 10.0**-at for at, spec in enumerate(layers)}
    return {s.name: draw("gaussian", s.shape, s.dtype, 100 * step + rank) * sizes[s.name] for s in layers}


def flat_of(tensors):
    return torch.cat([tensor.flatten() for tensor in tensors.values()])


def workers(text=TEXT, layers=LAYERS):
    return [Exchanger(layers, parse(text), seed=7) for _ in range(RANKS)]


def in_buckets(exchanger, tensors, buckets, step, world, into=None):
    """A step's program that exchanges one bucket after another; what each gave, and whether the step was good."""
    yield from exchanger.begin(step, world)
    gave = []
    for names in buckets:
        places = None if into is None else {name: into[name] for name in names}
        gave.append((yield from exchanger.exchange({n: tensors[n] for n in names}, step, world, into=places)))
    return gave, exchanger.settle()


def run(exchangers, step, buckets, given=tensors_of, into=None):
    programs = [
        in_buckets(e, given(step, r), buckets, step, World(r, RANKS), None if into is None else into[r])
        for r, e in enumerate(exchangers)
    ]
    return lockstep(programs)


@pytest.mark.parametrize("inner", ("topk(density=0.1)", "two_hop(topk(density=0.1))", "sign()", "union(topk(k=5))"))
def test_the_result_is_that_of_one_long_vector(inner):
    """A residual is each coordinate's own, so it does not matter that each layer keeps its own."""
    by_layer, flat = workers(f"ef(flatten({inner}))"), workers(f"ef({inner})", [FLAT])
    for step in range(5):
        given = [tensors_of(step, rank) for rank in range(RANKS)]
        outs = lockstep(
            [e.run_step(t, step, World(r, RANKS)) for r, (e, t) in enumerate(zip(by_layer, given, strict=True))]
        )
        joint = [{"flat": flat_of(tensors)} for tensors in given]
        ones = lockstep(
            [e.run_step(t, step, World(r, RANKS)) for r, (e, t) in enumerate(zip(flat, joint, strict=True))]
        )
        for out, one in zip(outs, ones, strict=True):
            assert torch.equal(flat_of(out), one["flat"])
    residual = torch.cat([by_layer[1].states[spec.name].residual.flatten() for spec in LAYERS])
    assert torch.equal(residual, flat[1].states["flat"].residual)


def test_layers_wait_for_the_last_bucket_and_buckets_do_not_matter():
    at_once, late = workers(), workers()
    for step in range(3):
        ((all_at_once,), _), *_ = run(at_once, step, [["a", "b", "c"]])
        ((first, second, last), good), *_ = run(late, step, [["c"], ["b"], ["a"]])
        assert good and not first and not second
        assert_same({name: last[name] for name in all_at_once}, all_at_once)
    assert_same(at_once[2].state_dict(), late[2].state_dict())


def test_averages_are_written_into_the_buffers_of_early_buckets():
    into = [tensors_of(0, rank) for rank in range(RANKS)]
    ((expected,), _), *_ = run(workers(), 0, [["a", "b", "c"]])
    run(workers(), 0, [["c"], ["a", "b"]], into=into)
    for written in into:
        assert_same(written, {name: expected[name] for name in written})


def test_bytes_are_those_of_one_message_and_a_layer_of_large_values_takes_them_all():
    exchangers, meters = workers("flatten(topk(k=10))"), [Meter() for _ in range(RANKS)]
    rounds = [e.run_step(tensors_of(0, r), 0, World(r, RANKS)) for r, e in enumerate(exchangers)]
    outs = lockstep(rounds, meters)
    assert meters[0].sum_by("layer").keys() == {"whole", ""}
    assert meters[0].sum_by("kind")["values"].payload_bytes == 40
    assert int((outs[0]["a"] != 0).sum()) >= 10 and not outs[0]["c"].any()


def test_layers_that_are_not_flattened_do_not_wait():
    rules = {"a": parse(TEXT), "b": parse("dense()"), "c": parse(TEXT)}
    exchangers = [Exchanger(LAYERS, rules) for _ in range(RANKS)]
    ((first, second), good), *_ = run(exchangers, 0, [["c", "b"], ["a"]])
    assert good and list(first) == ["b"] and sorted(second) == ["a", "c"]


def test_a_nan_in_an_early_bucket_makes_the_step_bad_on_all_ranks():
    exchangers = workers()
    run(exchangers, 0, [["a", "b", "c"]])
    before = [e.state_dict() for e in exchangers]

    def spoilt(step, rank):
        tensors = tensors_of(step, rank)
        tensors["c"][0] = math.nan if rank == 1 else 1.0
        return tensors

    for (_, last), good in run(exchangers, 1, [["c"], ["a", "b"]], spoilt):
        assert not good
        assert sorted(last) == ["a", "b", "c"] and all(bool(value.isnan().all()) for value in last.values())
    for exchanger, old in zip(exchangers, before, strict=True):
        assert_same(exchanger.state_dict(), {**old, "skipped_steps": 1})


def test_a_step_in_which_a_layer_never_came_changes_nothing(caplog):
    exchangers = workers()
    before = exchangers[0].state_dict()
    for _, good in run(exchangers, 0, [["c"], ["a"]]):
        assert not good
    assert "layers missing in this step: b" in caplog.text
    assert_same(exchangers[0].state_dict(), {**before, "skipped_steps": 1})
    assert all(good for _, good in run(exchangers, 1, [["c"], ["a", "b"]]))


def test_a_layer_that_waits_is_not_exchanged_twice():
    with pytest.raises(ProtocolError, match="layer c was already exchanged"):
        run(workers(), 0, [["c"], ["c", "a", "b"]])


def test_the_widest_type_serves_all():
    layers = [TensorSpec("a", (6,), torch.bfloat16), TensorSpec("b", (7,)), TensorSpec("c", (3,), torch.float16)]
    exchangers = workers(layers=layers)
    outs = lockstep([e.run_step(tensors_of(0, r, layers), 0, World(r, RANKS)) for r, e in enumerate(exchangers)])
    assert [outs[0][spec.name].dtype for spec in layers] == [spec.dtype for spec in layers]
    assert all(e.states["a"].residual.dtype == torch.float32 for e in exchangers)


def test_each_fragment_of_a_local_round_is_flattened():
    settings = parse_sync("local(sync_every=2, num_fragments=2, composition=ef(flatten(topk(density=0.2))))")
    weights = [{s.name: torch.zeros(s.shape) for s in LAYERS} for _ in range(RANKS)]
    rounds = [LocalRounds(settings, mine) for mine in weights]

    def steps(rank):
        for step in range(6):
            for name, change in tensors_of(step, rank).items():
                weights[rank][name] -= change
            yield from rounds[rank].after_step(step, World(rank, RANKS))

    lockstep([steps(rank) for rank in range(RANKS)])
    assert rounds[0].num_rounds == 6 and rounds[0].bad_in_a_row == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("flatten(ef(topk(density=0.1)))", r"ErrorFeedback has state per layer.*ef\(flatten\(topk"),
        ("flatten(powersgd(rank=2))", "PowerSGD has state per layer"),
        ("flatten(impk(density=0.1))", "ImpK treats each layer separately"),
        ("flatten(flatten(topk(k=1)))", "Flatten treats each layer separately"),
        ("flatten(switch(topk(k=1), dense()))", "treats each layer separately"),
        ("ef(flatten(adapt(topk(k=1), qsgd(), controller=lgreco())))", "treats each layer separately"),
    ],
)
def test_parts_with_state_or_settings_per_layer_are_refused(text, words):
    with pytest.raises(IncompatibleParts, match=words):
        parse(text)


def test_layers_of_two_devices_are_not_flattened():
    layers = [TensorSpec("a", (8, 5)), TensorSpec("b", (30,), device=torch.device("meta"))]
    with pytest.raises(IncompatibleParts, match=r"a on cpu and b on meta.*a pattern of their own"):
        Exchanger(layers, parse(TEXT))
    each = {"a": parse(TEXT), "b": parse("ef(flatten(topk(density=0.2)))")}
    assert Exchanger(layers, each).flattened_layers == ["a", "b"]
