"""Laws that every composition keeps, over drawn tensors and worlds of several sizes."""

import pytest
import torch

from drawn import COMPOSITION_TEXTS, KINDS, MIXING_TEXTS, compositions, draw
from reducing import reduce_all
from thinwire import Exchanger, Meter, TensorSpec, World, lockstep, parse
from thinwire.core import derive_key, flatten_state, mixes

EVERY = pytest.mark.parametrize("aggregator", compositions(), ids=COMPOSITION_TEXTS)


# short residuals keep the law in the mean only, see tests/unit/feedback/test_residuals.py
EXACT_FEEDBACK = [text for text in COMPOSITION_TEXTS if text.startswith("ef(") and "residual=" not in text]

CHOCOS = [parse(text) for text in MIXING_TEXTS if text.startswith("choco")]


def leaves(state):
    return [leaf for leaf in flatten_state(state).values() if isinstance(leaf, torch.Tensor)]


@EVERY
@pytest.mark.parametrize("size", (1, 2, 5))
def test_the_mean_of_what_was_sent_is_what_everybody_gets(aggregator, size):
    for kind in ("gaussian", "sparse", "zeros", "constant"):
        tensors = [draw(kind, (33, 5), torch.float64, seed) for seed in range(size)]
        outs = reduce_all(aggregator, tensors)
        mean_sent = sum(out.sent.double() for out in outs) / size
        mean_value = sum(out.value.double() for out in outs) / size
        torch.testing.assert_close(mean_value, mean_sent, rtol=1e-6, atol=1e-9)
        if mixes(aggregator) is None:
            assert all(torch.equal(out.value, outs[0].value) for out in outs), "replicas must be equal to the last bit"


@EVERY
@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.bfloat16), ids=str)
def test_finite_tensors_leave_finite_memories(aggregator, dtype):
    for kind in KINDS:
        for shape in ((), (0,), (9,), (20, 3)):
            states = None
            for step in range(3):
                tensors = [draw(kind, shape, dtype, 10 * step + rank) for rank in range(2)]
                outs = reduce_all(aggregator, tensors, states, step)
                states = [out.state for out in outs]
                assert all(bool(leaf.isfinite().all()) for state in states for leaf in leaves(state)), (kind, shape)


@EVERY
def test_labels_account_for_every_byte(aggregator):
    meters = [Meter() for _ in range(3)]
    reduce_all(aggregator, [draw("gaussian", (40, 6), seed=rank) for rank in range(3)], meters=meters)
    for meter in meters:
        labelled = sum(t.payload_bytes for where, t in meter.rows.items() if where.layer == "layer")
        assert labelled == meter.total().payload_bytes > 0
        assert meter.total().sent_bytes >= meter.total().payload_bytes


@EVERY
def test_a_bad_step_gives_nan_everywhere_and_changes_no_memory(aggregator):
    world, layers = 3, [TensorSpec("a", (12,)), TensorSpec("b", (3, 4))]
    everybody = [Exchanger(layers, aggregator) for _ in range(world)]
    exchangers = everybody

    def step(number, spoil=None):
        tensors = [{s.name: draw("gaussian", s.shape, seed=7 * number + r) for s in layers} for r in range(world)]
        if spoil:
            tensors[1]["a"][5] = spoil
        return lockstep(
            [e.round(t, number, World(r, world)) for r, (e, t) in enumerate(zip(everybody, tensors, strict=True))]
        )

    step(0)
    before = [e.state_dict() for e in exchangers]
    for spoil in (float("nan"), float("inf"), -float("inf")):
        for rank, out in enumerate(step(1, spoil)):
            if mixes(aggregator) is None or rank == 1:
                assert all(bool(value.isnan().all()) for value in out.values())
            else:
                assert all(bool(value.isfinite().all()) for value in out.values()), "partners go on without that rank"
    if mixes(aggregator) is not None:
        exchangers, before = exchangers[1:2], before[1:2]  # the others' memories have moved on
    for exchanger, old in zip(exchangers, before, strict=True):
        new = exchanger.state_dict()
        assert new.pop("skipped_steps") == old["skipped_steps"] + 3
        kept, new = ({what: state[what] for what in ("layers", "importance")} for state in (old, new))
        if aggregator in CHOCOS:  # it heard its partners all the same; what they believe of it has not changed
            kept, new = ({n: m["own"] for n, m in state["layers"].items()} for state in (kept, new))
        assert_same(kept, new)
    assert all(bool(v.isfinite().all()) for out in step(2) for v in out.values())


@EVERY
def test_a_resumed_run_continues_bit_for_bit(aggregator):
    layers = [TensorSpec("w", (20, 3)), TensorSpec("v", (7,), torch.bfloat16)]

    def run(exchangers, steps):
        for number in steps:
            tensors = [{s.name: draw("gaussian", s.shape, s.dtype, 31 * number + r) for s in layers} for r in range(2)]
            pairs = enumerate(zip(exchangers, tensors, strict=True))
            outs = lockstep([e.round(t, number, World(r, 2)) for r, (e, t) in pairs])
        return outs

    straight = [Exchanger(layers, aggregator, seed=5) for _ in range(2)]
    expected = run(straight, range(8))
    first = [Exchanger(layers, aggregator, seed=5) for _ in range(2)]
    run(first, range(5))
    stored = [as_bytes_and_back(e.state_dict()) for e in first]
    second = [Exchanger(layers, aggregator, seed=5) for _ in range(2)]
    for exchanger, state in zip(second, stored, strict=True):
        exchanger.load_state_dict(state)
    resumed = run(second, range(5, 8))
    for a, b in zip(expected, resumed, strict=True):
        assert_same(a, b)
    for a, b in zip(straight, second, strict=True):
        assert_same(a.state_dict(), b.state_dict())


def as_bytes_and_back(state):
    """Through plain bytes, as a file would hold it."""
    if isinstance(state, dict):
        return {key: as_bytes_and_back(value) for key, value in state.items()}
    if isinstance(state, torch.Tensor):
        raw = bytearray(state.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        empty = torch.empty(state.shape, dtype=state.dtype)
        return torch.frombuffer(raw, dtype=state.dtype).view(state.shape) if raw else empty
    return state


def assert_same(a, b):
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    else:
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.parametrize("text", EXACT_FEEDBACK)
def test_error_feedback_loses_nothing_over_a_thousand_steps(text):
    """sum of sent + residual = sum of tensors."""
    aggregator, shape = parse(text), (24,)
    spec = TensorSpec("layer", shape, torch.float64)
    state, given, sent = aggregator.init(spec, derive_key(0)), torch.zeros(shape).double(), torch.zeros(shape).double()
    generator = torch.Generator().manual_seed(1)
    for step in range(1000):
        tensor = torch.randn(shape, generator=generator, dtype=torch.float64)
        (out,) = reduce_all(aggregator, [tensor], [state], step)
        state, given, sent = out.state, given + tensor, sent + out.sent
    if text != "ef(ef21(topk(density=0.1)))":  # there `sent` is a belief, not a message; the residual stays bounded
        torch.testing.assert_close(
            sent + state.residual, given, rtol=1e-9, atol=1e-9 * float(state.residual.abs().max() + 1)
        )


def test_error_feedback_is_exact_where_arithmetic_is():
    """Whole numbers are added without rounding, so here the identity holds to the last bit."""
    aggregator, total = parse("ef(topk(density=0.1))"), torch.zeros(50)
    state, sent = aggregator.init(TensorSpec("layer", (50,)), derive_key(0)), torch.zeros(50)
    generator = torch.Generator().manual_seed(2)
    for step in range(1000):
        tensor = torch.randint(-50, 51, (50,), generator=generator).float()
        (out,) = reduce_all(aggregator, [tensor], [state], step)
        state, total, sent = out.state, total + tensor, sent + out.sent
    assert torch.equal(sent + state.residual, total)


def test_ef21_shares_the_mean_of_all_beliefs_at_every_step():
    aggregator, states = parse("ef21(topk(density=0.1))"), None
    target = [draw("gaussian", (60,), torch.float64, r) for r in range(4)]
    for step in range(300):
        outs = reduce_all(aggregator, target, states, step)
        states = [out.state for out in outs]
        mean = sum(state.local for state in states) / 4
        torch.testing.assert_close(states[0].shared, mean)
    torch.testing.assert_close(states[0].local, target[0])  # beliefs reach a tensor that does not change
