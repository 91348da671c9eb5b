"""SCAM: selects coordinates by residual + gradient and sends the gradient there."""

import pytest
import torch

from helpers.cases import draw
from thinwire import CompositionError, IncompatibleParts, TensorSpec, World, lockstep, loopback, parse
from thinwire.aggregators import Dense, GatherMean
from thinwire.compressors import QSGD, RandomK, TopK
from thinwire.core import Context, derive_key, selects_coordinates
from thinwire.feedback import EF21, SCAM
from thinwire.feedback.residuals import dequantize_residual
from thinwire.feedback.scam import FixedSelection

SPEC = TensorSpec("layer", (50,), torch.float64)


def steps(aggregator, count, seed=0, spec=SPEC):
    """Yields (tensor, residual before, what came out) for random tensors."""
    state = aggregator.init(spec, derive_key("init"))
    for step in range(count):
        tensor = draw("gaussian", spec.shape, spec.dtype, 1000 * seed + step)
        out = loopback(aggregator.reduce(tensor, spec, state, Context(step, World(0, 1), seed=1)))
        yield tensor, state.residual, out
        state = out.state


@pytest.mark.parametrize("text", ["scam(topk(density=0.1))", "scam(threshold(tau=2.0))", "scam(energy_sampling(k=5))"])
def test_published_form_loses_nothing_over_a_thousand_steps(text):
    given = sent = torch.zeros(SPEC.shape, dtype=SPEC.dtype)
    for tensor, _, out in steps(parse(text), 1000):
        given, sent = given + tensor, sent + out.sent
    torch.testing.assert_close(sent + out.state.residual, given, rtol=1e-9, atol=1e-9)


def test_selects_by_residual_plus_gradient_and_sends_the_gradient():
    for tensor, before, out in steps(parse("scam(topk(k=5))"), 50):
        chosen = (before + tensor).abs().topk(5).indices.sort().values
        assert torch.equal(out.sent.nonzero().flatten(), chosen)
        assert torch.equal(out.sent[chosen], tensor[chosen])


def test_published_form_leaves_the_residual_as_it_was_where_it_sent():
    for _, before, out in steps(parse("scam(topk(k=5))"), 50):
        there = out.sent != 0
        assert torch.equal(out.state.residual[there], before[there])


@pytest.mark.parametrize(
    "inner", ["topk(k=5)", "energy_sampling(k=5)", "quantile_threshold(density=0.1, sample_fraction=0.5)"]
)
def test_reset_selected_clears_the_residual_where_it_sent_and_only_there(inner):
    for tensor, before, out in steps(parse(f"scam({inner}, reset_selected=true)"), 50):
        there = out.sent != 0
        assert bool(there.any()) and bool((out.state.residual[there] == 0).all())
        assert torch.equal(out.state.residual[~there], (before + tensor)[~there])


def test_reset_selected_clears_selected_coordinates_even_if_the_gradient_is_zero_there():
    aggregator, spec = parse("scam(topk(k=1), reset_selected=true)"), TensorSpec("layer", (3,))
    state = aggregator.init(spec, derive_key(0))._replace(residual=torch.tensor([1.0, 5.0, 2.0]))
    out = loopback(aggregator.reduce(torch.tensor([0.5, 0.0, 0.5]), spec, state, Context(0, World(0, 1))))
    assert out.sent.tolist() == [0, 0, 0]
    assert out.state.residual.tolist() == [1.5, 0, 2.5]


def test_decay_shrinks_the_whole_residual():
    for tensor, before, out in steps(parse("scam(topk(k=5), decay=0.75)"), 50):
        torch.testing.assert_close(out.state.residual, 0.75 * (before + tensor - out.sent))


def test_published_residuals_grow_and_the_variants_do_not():
    """A tensor that is always the same: published SCAM never clears its residual."""

    def largest_after(text, count):
        aggregator, tensor = parse(text), torch.linspace(0.5, 1.5, 50, dtype=torch.float64)
        state = aggregator.init(SPEC, derive_key(0))
        for step in range(count):
            state = loopback(aggregator.reduce(tensor, SPEC, state, Context(step, World(0, 1)))).state
        return float(state.residual.abs().max())

    assert largest_after("scam(topk(k=5))", 400) > 1.8 * largest_after("scam(topk(k=5))", 200)
    for text in ("scam(topk(k=5), reset_selected=true)", "scam(topk(k=5), decay=0.9)"):
        assert largest_after(text, 400) < 30


@pytest.mark.parametrize(("form", "apart"), [("bf16", 0.01), ("int8", 0.05)])
def test_a_quantized_residual_is_close_to_the_exact_one(form, apart):
    spec = TensorSpec("layer", (2000,))
    given = sent = torch.zeros(spec.shape)
    for tensor, _, out in steps(SCAM(GatherMean(TopK(density=0.1)), residual_dtype=form), 20, spec=spec):
        given, sent = given + tensor, sent + out.sent
    exact = given - sent
    assert float((dequantize_residual(out.state.residual, spec) - exact).norm()) < apart * float(exact.norm())


def test_two_hops_send_the_gradient_at_the_selected_coordinates():
    """k=12 of 12 leaves nothing to lose in the second hop; k=4 still loses nothing over ranks."""
    for k in (12, 4):
        aggregator, spec, size = parse(f"scam(two_hop(topk(k={k})))"), TensorSpec("layer", (12,), torch.float64), 3
        states = [aggregator.init(spec, derive_key(0)) for _ in range(size)]
        given = value = torch.zeros(12, dtype=torch.float64)
        for step in range(30):
            tensors = [draw("gaussian", (12,), torch.float64, 10 * step + r) for r in range(size)]
            contexts = [Context(step, World(r, size)) for r in range(size)]
            outs = lockstep([aggregator.reduce(*x) for x in zip(tensors, [spec] * 3, states, contexts, strict=True)])
            states = [out.state for out in outs]
            given, value = given + sum(tensors) / size, value + outs[0].value
        torch.testing.assert_close(value + sum(s.residual for s in states) / size, given)
        assert k == 4 or all(float(s.residual.abs().max()) < 1e-12 for s in states)


@pytest.mark.parametrize(
    ("inner", "name"),
    [
        (GatherMean(QSGD()), "QSGD"),
        (GatherMean(RandomK(k=3)), "RandomK"),
        (Dense(), "Dense"),
        (EF21(GatherMean(TopK(k=3))), "EF21"),
    ],
)
def test_parts_that_do_not_select_coordinates_are_refused(inner, name):
    with pytest.raises(
        IncompatibleParts, match=rf"SCAM selects .*; {name} does not select coordinates\. Use scam\(topk"
    ):
        SCAM(inner)


@pytest.mark.parametrize("decay", [0.0, -1.0, 1.5, float("nan")])
def test_decay_out_of_range_is_refused(decay):
    with pytest.raises(CompositionError, match=r"SCAM: decay must be in \(0, 1\], got"):
        SCAM(GatherMean(TopK(k=3)), decay=decay)


def test_a_fixed_selection_selects_coordinates_itself():
    fixed = FixedSelection(TopK(k=2), torch.tensor([0, 3]))
    assert selects_coordinates(fixed)
    assert fixed.for_shard(2) == TopK(k=1)
    spec, key, tensor = TensorSpec("layer", (4,)), derive_key(0), torch.tensor([1.0, 9.0, 9.0, 2.0])
    assert fixed.decode(fixed.encode(tensor, key), spec, key).tolist() == [1, 0, 0, 2]
    one = torch.tensor([1])
    assert fixed.decode_at(fixed.encode_at(tensor[one], one, 4, key), spec, key).tolist() == [0, 9, 0, 0]
    assert (fixed.contract(spec), fixed.num_bytes(spec)) == (TopK(k=2).contract(spec), TopK(k=2).num_bytes(spec))
