"""Errors and bytes of all options, against running each."""

import math

import pytest
import torch

from helpers.cases import draw
from thinwire.aggregators.switch import Adapt
from thinwire.catalog import parse
from thinwire.controllers import LGreCo
from thinwire.controllers.estimates import CostTable, compute_bytes, compute_errors, measure_bytes, measure_error
from thinwire.core import Context, Key, Menu, TensorSpec, World
from thinwire.drivers.lockstep import lockstep
from thinwire.drivers.meter import Meter
from thinwire.exchange import Exchanger

KEY = Key(7)
SPEC = TensorSpec("w", (48, 64))
SAMPLES = ["gaussian", "heavy tails", "sparse", "zeros", "one-hot", "tiny"]


def options_for(*texts: str):
    return Adapt(tuple(map(parse, texts)), LGreCo()).menu.options


def tensor(kind: str):
    return draw(kind, SPEC.shape, seed=5)


@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.parametrize(
    "text", ["topk(density=0.05)", 'topk(density=0.05, values="bf16")', "sketch(topk(density=0.05))"]
)
def test_one_sort_gives_the_errors_of_all_densities(text, kind):
    options = options_for(text)
    found = compute_errors(options, tensor(kind), SPEC, KEY)
    tried = torch.tensor([measure_error(option, tensor(kind), SPEC, KEY) for option in options], dtype=torch.float64)
    rounding = (1e-6 if "bf16" not in text else 2**-8) * float(tensor(kind).double().norm())
    torch.testing.assert_close(found, tried, rtol=1e-4, atol=max(rounding, 1e-30))


@pytest.mark.parametrize("kind", SAMPLES)
def test_one_factorization_gives_the_errors_of_all_ranks_and_the_exact_form_is_exact(kind):
    options = options_for("powersgd(rank=4, min_saving=1.0)")
    singular = torch.linalg.svdvals(tensor(kind).double())
    true = [math.sqrt(float(singular[option.rank :].square().sum())) for option in options]
    size = float(tensor(kind).double().norm())
    assert compute_errors(options, tensor(kind), SPEC, KEY, exact=True).tolist() == pytest.approx(true, abs=1e-7 * size)
    quick = compute_errors(options, tensor(kind), SPEC, KEY)
    assert quick.tolist() == pytest.approx(true, rel=0.05, abs=1e-6 * size)
    assert all(q >= t - 1e-6 * size for q, t in zip(quick.tolist(), true, strict=True))  # a subspace never finds more


def test_layers_that_would_travel_dense_lose_nothing():
    options = options_for("powersgd(rank=16)")  # 2 (48 + 64) 16 > 48 · 64
    errors, costs = (
        compute_errors(options, tensor("gaussian"), SPEC, KEY),
        compute_bytes(options, tensor("gaussian"), SPEC, 4, KEY),
    )
    dense = parse("dense()").expected_bytes(SPEC, 4)
    for option, error, cost in zip(options, errors, costs, strict=True):
        assert (error == 0) == (cost == dense) == (option.form(SPEC) is None)


def test_errors_fall_along_the_options_and_bytes_rise():
    for text in ("topk(density=0.02)", "qsgd(bits=4)", "uniform(bits=4)", "powersgd(rank=4, min_saving=1.0)"):
        options = options_for(text)
        errors, costs = (
            compute_errors(options, tensor("gaussian"), SPEC, KEY),
            compute_bytes(options, tensor("gaussian"), SPEC, 4, KEY),
        )
        assert errors.diff().max() <= 0 and costs.diff().min() >= 0, text


@pytest.mark.parametrize(
    "text",
    [
        "dense()",
        "qsgd(bits=4)",
        "topk(density=0.05)",
        "powersgd(rank=2)",
        "randomk(density=0.1)",
        "natural()",
        "powersgd(rank=2, alternate=true)",
    ],
)
@pytest.mark.parametrize("size", [2, 5])
def test_expected_bytes_are_those_that_ranks_send(text, size):
    meters = [Meter() for _ in range(size)]
    exchangers = [Exchanger([SPEC], parse(text)) for _ in range(size)]
    for step in range(2):  # an even and an odd one
        programs = [
            e.run_step({"w": draw("gaussian", SPEC.shape, seed=10 * step + r)}, step, World(r, size))
            for r, e in enumerate(exchangers)
        ]
        lockstep(programs, meters)
    sent = sum(m.sum_by("layer")["w"].sent_bytes for m in meters) / size / 2
    price = float(compute_bytes([parse(text)], tensor("gaussian"), SPEC, size, KEY)[0])
    assert sent == pytest.approx(price, rel=0.03)


def test_a_sketch_is_priced_at_no_less_than_it_sends():
    size, meters = 3, [Meter() for _ in range(3)]
    option = parse("sketch(topk(density=0.02))")
    lockstep(
        [
            Exchanger([SPEC], option).run_step({"w": draw("gaussian", SPEC.shape, seed=r)}, 0, World(r, size))
            for r in range(size)
        ],
        meters,
    )
    sent = meters[0].sum_by("layer")["w"].sent_bytes
    assert sent <= option.expected_bytes(SPEC, size) <= 2 * sent


def test_what_nobody_knows_is_tried():
    option = parse("two_hop(qsgd(bits=4))")
    assert measure_bytes(option, tensor("gaussian"), SPEC, 4, KEY) > 0
    assert float(compute_bytes([option], tensor("gaussian"), SPEC, 1, KEY)[0]) > 0  # a world of one is priced as of two


SUMS = ["union(topk(density=0.05))", "union(topk(density=0.02), index='bloom')", "sketch(topk(density=0.05))"]
SUMS += ["sketch(topk(density=0.05, values=uniform(bits=4)))", "sketch(topk(density=0.05), cells=0.2)"]
SUMS += ["sketch(topk(density=0.05), exact=true)", "sketch(topk(density=0.4))", "sketch(qsgd(bits=4))"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [2, 8])
@pytest.mark.parametrize("text", SUMS)
def test_sums_of_independent_ranks_cost_what_is_expected(text, size, dtype):
    spec, meters = TensorSpec("w", (100, 120), dtype), [Meter() for _ in range(size)]
    tensors = [draw("gaussian", spec.shape, dtype, seed=r) for r in range(size)]
    lockstep(
        [Exchanger([spec], parse(text)).run_step({"w": t}, 0, World(r, size)) for r, t in enumerate(tensors)], meters
    )
    sent = meters[0].sum_by("layer")["w"].sent_bytes
    assert sent == pytest.approx(parse(text).expected_bytes(spec, size), rel=0.1)


@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_a_threshold_is_priced_by_the_tensor(scale):
    option, given = parse("threshold(tau=0.002)"), scale * tensor("gaussian")
    meters = [Meter() for _ in range(2)]
    lockstep([Exchanger([SPEC], option).run_step({"w": given}, 0, World(r, 2)) for r in range(2)], meters)
    price = float(compute_bytes([option], given, SPEC, 2, KEY)[0])
    assert meters[0].sum_by("layer")["w"].sent_bytes == pytest.approx(price, rel=0.03)


def test_what_changes_with_the_step_is_priced_at_the_present_one():
    option = parse("scheduled(topk(density=0.01), start=1.0, end=0.01, steps=10)")
    early, late = (compute_errors([option], tensor("gaussian"), SPEC, KEY, step=step) for step in (0, 50))
    assert float(early) == 0 and float(late) > 0
    sent = [compute_bytes([option], tensor("gaussian"), SPEC, 2, KEY, step) for step in (0, 50)]
    assert sent[0] > 20 * sent[1]


def test_bytes_that_depend_on_no_tensor_are_asked_for_once_a_world_size(monkeypatch):
    asked, option = [], parse("topk(density=0.05)")
    expected_bytes = type(option).expected_bytes
    monkeypatch.setattr(type(option), "expected_bytes", lambda *args: asked.append(args) or expected_bytes(*args))
    costs = CostTable(((SPEC, Menu((option, parse("topk(density=0.1)")))),))
    no_tensors = {}.__getitem__  # fails if it is called
    rows = [costs.compute(no_tensors, Context(step, World(0, size))) for step, size in enumerate((4, 4, 8, 4))]
    assert len(asked) == 2 * 2
    assert [float(row[0][0]) for row in rows] == [expected_bytes(option, SPEC, size) for size in (4, 4, 8, 4)]


def test_bytes_that_depend_on_the_tensor_are_measured_at_each_decision():
    options = (parse("topk(density=0.05)"), parse("threshold(tau=0.5)"))
    costs, ctx = CostTable(((SPEC, Menu(options)), (SPEC, Menu(options[:1])))), Context(0, World(0, 2))
    tensors = [tensor("gaussian") * scale for scale in (1.0, 0.3)]
    rows = [costs.compute([given].__getitem__, ctx) for given in (*tensors, tensors[0])]
    assert float(rows[0][0][1]) > 2 * float(rows[1][0][1])
    assert torch.equal(rows[0][0], rows[2][0])
    assert all(torch.equal(row[1], rows[0][0][:1]) for row in rows)


def test_menus_of_the_same_length_keep_their_own_errors():
    given = tensor("gaussian")
    for exact in (False, True, False):
        for text in ("topk(density=0.05)", "topk(density=0.02)", 'topk(density=0.02, values="bf16")'):
            options = options_for(text)  # a new tuple, perhaps where the last one was
            alone = [float(compute_errors([option], given, SPEC, KEY, exact)) for option in options[::9]]
            assert compute_errors(options, given, SPEC, KEY, exact)[::9].tolist() == pytest.approx(alone, rel=1e-9)


def test_options_of_other_methods_in_between_change_no_error():
    given, densities = tensor("heavy tails"), options_for("topk(density=0.05)")
    mixed = tuple(part for option in densities for part in (option, parse("qsgd(bits=4)")))
    assert torch.equal(compute_errors(mixed, given, SPEC, KEY)[::2], compute_errors(densities, given, SPEC, KEY))
