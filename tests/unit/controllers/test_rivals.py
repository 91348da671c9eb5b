"""Accordion, k-means and by-size controllers."""

import pytest
import torch

from helpers.cases import draw
from thinwire import CompositionError, Exchanger, IncompatibleParts, TensorSpec, World, lockstep, parse, to_text
from thinwire.controllers.accordion import is_critical
from thinwire.controllers.clusters import k_means, standardize
from thinwire.controllers.estimates import compute_bytes, compute_errors
from thinwire.controllers.knapsack import sum_chosen
from thinwire.core import derive_key
from thinwire.integrations.state_gather import gather_states

LAYERS = [TensorSpec("big", (40, 50)), TensorSpec("small", (10, 10))]


def run(text, steps, tensors, lr=lambda step: 0.1, layers=LAYERS):
    """Two ranks; the plans of all steps, as options of `layers`, and one rank's exchanger."""
    exchangers = [Exchanger(layers, parse(text), seed=3) for _ in range(2)]
    plans = []
    for step in range(steps):
        lockstep([e.run_step(tensors(step, r), step, World(r, 2), lr(step)) for r, e in enumerate(exchangers)])
        plans.append([exchangers[0].plan[spec.name] for spec in layers])
    return plans, exchangers[0]


def steady(step, rank):
    """The same at every step."""
    return {spec.name: draw("gaussian", spec.shape, seed=rank) for spec in LAYERS}


def test_a_norm_is_critical_if_it_changed_by_eta_or_was_never_seen():
    old = torch.tensor([-1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0])
    new = torch.tensor([1.0, 1.0, 0.6, 0.5, 1.6, 0.0, 0.1])
    assert is_critical(old, new, 0.5).tolist() == [True, False, False, True, True, False, True]


def test_accordion_begins_low_and_goes_high_when_gradients_have_settled():
    plans, exchanger = run("ef(adapt(topk(density=0.01), controller=accordion(every=2)))", 6, steady)
    densities = [exchanger.menus[0][1].options[option].compressor.density for option, _ in plans]
    assert densities == pytest.approx([0.02] * 4 + [0.005] * 2, rel=0.1)  # twice the bytes, not twice the density


def test_accordion_goes_back_to_low_for_the_layer_that_changes_alone():
    def one_changes(step, rank):
        tensors = steady(step, rank)
        tensors["small"] *= 3.0 if step >= 6 else 1.0
        return tensors

    plans, _ = run("ef(switch(dense(), topk(density=0.1), controller=accordion(every=2)))", 12, one_changes)
    assert plans == [[0, 0]] * 4 + [[1, 1]] * 4 + [[1, 0]] * 2 + [[1, 1]] * 2


def test_accordion_goes_back_to_low_after_the_learning_rate_fell_but_not_for_a_slow_decay():
    text = (
        "ef(switch(topk(density=0.1), dense(), controller=accordion(every=2)))"  # of two the dearer is low compression
    )
    fell, _ = run(text, 8, steady, lr=lambda step: 0.1 if step < 6 else 0.01)
    assert [big for big, _ in fell] == [1, 1, 1, 1, 0, 0, 1, 1]
    slow, _ = run(text, 8, steady, lr=lambda step: 0.1 * 0.95**step)
    assert [big for big, _ in slow] == [1, 1, 1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("stop", [5, 6, 7])
def test_a_resumed_accordion_remembers_the_learning_rate(stop):
    """As ranks gather it: numbers with a fraction stay what they are, or half of 0.01 would not be half of it."""
    text = "ef(switch(topk(density=0.1), dense(), controller=accordion(every=2)))"

    def rate(step):
        return 0.01 if step < 5 else 0.005

    whole, _ = run(text, 10, steady, lr=rate)
    exchangers = [Exchanger(LAYERS, parse(text), seed=3) for _ in range(2)]
    plans = []
    for step in range(10):
        if step == stop:
            states = [e.state_dict() | {"lr": rate(step)} for e in exchangers]  # as an optimizer's hook told the handle
            stored = lockstep([gather_states(state) for state in states])[0]
            exchangers = [Exchanger(LAYERS, parse(text), seed=3) for _ in range(2)]
            for rank, exchanger in enumerate(exchangers):
                exchanger.load_state_dict(stored[rank])
        lr = rate(step) if step not in (0, stop) else None  # not known yet
        lockstep([e.run_step(steady(step, r), step, World(r, 2), lr) for r, e in enumerate(exchangers)])
        plans.append([exchangers[0].plan[spec.name] for spec in LAYERS])
    first, _ = run(text, 10, steady, lr=lambda step: rate(step) if step else None)
    assert plans == first and len({tuple(plan) for plan in whole}) == 2


def test_lgreco_holds_errors_against_what_accordion_chose():
    """Where Accordion doubles the density, L-GreCo may lose only as much as that would, and sends more bytes."""
    alone, one = run("ef(adapt(topk(density=0.01), controller=lgreco(every=2, start=2)))", 5, steady)
    low, _ = run(
        "ef(adapt(topk(density=0.01), controller=lgreco(every=2, start=2, defaults_from=accordion(every=50))))",
        5,
        steady,
    )
    high, _ = run(
        "ef(adapt(topk(density=0.01), controller=lgreco(every=2, start=2, defaults_from=accordion(every=50, low=0.5))))",
        5,
        steady,
    )

    def sent(options):
        pairs = zip(one.menus, options, strict=True)
        return sum(menu.options[at].expected_bytes(spec, 2) for (spec, menu), at in pairs)

    assert sent(high[2]) < sent(alone[2]) < sent(low[2])


def test_points_in_heaps_are_found_whatever_the_key():
    heaps = torch.tensor([[0.0, 0.0], [5.0, 0.0], [0.0, 5.0]])
    points = torch.cat([heap + 0.1 * draw("gaussian", (6, 2), seed=at) for at, heap in enumerate(heaps)]).double()
    for word in range(20):
        members, _ = k_means(points, 3, derive_key(word))
        assert sorted(members[[0, 6, 12]].tolist()) == [0, 1, 2]
        assert all(len(set(members[at : at + 6].tolist())) == 1 for at in (0, 6, 12))


def test_there_are_no_more_clusters_than_different_points():
    members, centers = k_means(torch.ones(5, 2).double(), 6, derive_key(1))
    assert len(centers) == 1 and not members.any()
    assert not standardize(torch.ones(4, 2)).any()


def test_kmeans_spends_on_small_layers_of_large_error_and_keeps_within_the_defaults():
    layers = [TensorSpec(f"big{i}", (60, 50)) for i in range(3)] + [TensorSpec(f"small{i}", (10, 8)) for i in range(3)]

    def tensors(step, rank):
        scales = {s.name: 30.0 if s.name.startswith("small") else 0.1 for s in layers}
        return {s.name: draw("gaussian", s.shape, seed=9 * at + rank) * scales[s.name] for at, s in enumerate(layers)}

    text = "adapt(qsgd(bits=4), controller=kmeans(every=2, start=2, clusters=2))"
    plans, one = run(text, 3, tensors, layers=layers)
    assert max(plans[2][:3]) < min(plans[2][3:])
    errors, costs = [], []
    for spec, menu in one.menus:
        found = [compute_errors(menu.options, tensors(2, rank)[spec.name], spec, derive_key(0)) for rank in range(2)]
        errors.append(sum(found) / 2)
        costs.append(compute_bytes(menu.options, tensors(2, 0)[spec.name], spec, 2, derive_key(0)))
    defaults = [menu.default for _, menu in one.menus]
    assert sum_chosen(errors, plans[2]) <= 1.02 * sum_chosen(errors, defaults)  # it looked with other noise
    assert sum_chosen(costs, plans[2]) <= sum_chosen(costs, defaults)


def test_by_size_compresses_large_matrices_that_are_no_attention():
    names = {"h.0.attn.c_attn.weight": (100, 300), "h.0.mlp.weight": (100, 300), "tiny": (3, 3), "long": (40000,)}
    layers = [TensorSpec(name, shape) for name, shape in names.items()]
    exchanger = Exchanger(layers, parse("ef(switch(topk(density=0.01), dense(), controller=by_size(min_numel=20000)))"))
    assert list(exchanger.plan.values()) == [1, 0, 1, 1]
    every = Exchanger(
        layers, parse("ef(switch(topk(density=0.01), dense(), controller=by_size(min_numel=20000, exclude=())))")
    )
    assert list(every.plan.values()) == [0, 0, 1, 1]


def test_settings_that_cannot_be_are_refused_by_name():
    for text, words in {
        "accordion(eta=0)": "eta, a relative change, must be above 0, got 0.0",
        "accordion(every=0)": "Accordion: every must be at least 1, got 0",
        "accordion(low=0.5, high=2)": "high compression sends no more than low, got high=2.0 and low=0.5",
        "kmeans(clusters=0)": "KMeans: clusters must be at least 1, got 0",
        "kmeans(alpha=-1)": "KMeans: alpha, a multiple of the default's error, must be above 0",
        'kmeans(errors_from="some")': "KMeans: errors_from must be one of all, rank0, got 'some'",
        "by_size(min_numel=0)": "BySize: min_numel must be at least 1, got 0",
        "by_size(exclude=(1,))": "BySize: exclude takes patterns of layer names",
    }.items():
        with pytest.raises(CompositionError, match=words.replace("(", r"\(").replace(")", r"\)")):
            parse(f"switch(topk(k=1), dense(), controller={text})")
    with pytest.raises(IncompatibleParts, match="BySize chooses between two options; the menu of big has 3"):
        Exchanger(LAYERS, parse("switch(topk(k=1), qsgd(), dense(), controller=by_size())"))


def test_a_reference_has_a_text():
    text = "ef(adapt(topk(density=0.01), controller=lgreco(every=10, defaults_from=accordion(every=10))))"
    assert to_text(parse(text)) == text
