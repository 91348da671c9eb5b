"""When a round is due, and how settings are written."""

import math

import pytest

from thinwire import CompositionError, IncompatibleParts
from thinwire.core import TensorSpec
from thinwire.sync import (
    BSP,
    Drift,
    Every,
    Local,
    Nesterov,
    PostLocal,
    StepInfo,
    parse_outer_optimizer,
    parse_policy,
    parse_sync,
    period_bound,
    sync_text,
)
from thinwire.sync.pending_rounds import initial_steps, split_fragments


def rounds(policy, steps, drift=None):
    """Steps after which a round was due."""
    found, since = [], 0
    for step in range(steps):
        since += 1
        if policy.is_due(StepInfo(step, since, drift and drift(step))):
            found.append(step)
            since = 0
    return found


def test_every_period_steps():
    assert rounds(Every(4), 13) == [3, 7, 11]
    assert rounds(Every(1), 3) == rounds(BSP(), 3) == [0, 1, 2]


def test_post_local_begins_with_every_step():
    assert rounds(PostLocal(3, 4), 14) == [0, 1, 2, 6, 10]
    assert rounds(PostLocal(0, 4), 14) == rounds(Every(4), 14)


def test_drift_waits_for_distance_or_for_most_steps():
    assert rounds(Drift(0.5, max_period=4), 12, lambda step: 0.9 if step == 5 else 0.1) == [3, 5, 9]


@pytest.mark.parametrize("nonsense", (math.nan, math.inf, -1.0, None))
def test_drift_ignores_what_is_no_number(nonsense):
    assert rounds(Drift(0.5, max_period=6), 12, lambda step: nonsense) == [5, 11]


def test_the_bound_of_the_period():
    assert period_bound(10_000, 1) == pytest.approx(10.0)
    assert period_bound(16**4, 16) == pytest.approx(2.0)
    with pytest.raises(CompositionError, match="at least 1"):
        period_bound(0, 4)


TEXTS = {
    "local()": Local(),
    "local(sync_every=16, outer_optimizer=nesterov(lr=0.4))": Local(sync_every=16, outer_optimizer=Nesterov(lr=0.4)),
    "local(sync_every=post_local(start=10, period=4))": Local(sync_every=PostLocal(10, 4)),
    "local(sync_every=16, composition=ef(topk(density=0.01)))": None,
    "local(sync_every=16, composition=ef(uniform(bits=4)), outer_optimizer=nesterov())": None,
    "local(sync_every=30, composition=ef(topk(density=0.02, values=uniform(bits=2))))": None,
    "local(sync_every=8, num_fragments=2, fragment_sync_delay=1, fragment_update_alpha=0.5)": Local(
        sync_every=8, num_fragments=2, fragment_sync_delay=1, fragment_update_alpha=0.5
    ),
    'local(composition=ring_all_reduce(), payload="weights", overlap=true)': None,
    "ef(topk(density=0.01))": None,
}


@pytest.mark.parametrize(("text", "settings"), TEXTS.items())
def test_a_text_is_read_back(text, settings):
    read = parse_sync(text)
    assert settings is None or read == settings
    assert sync_text(read) == text and parse_sync(sync_text(read)) == read


def test_parts_may_stand_in_quotes():
    quoted = 'local(sync_every="post_local(start=1, period=2)", composition="ef(topk(k=3))", outer_optimizer="nesterov(lr=0.7)")'
    assert parse_sync(quoted) == parse_sync(quoted.replace('"', ""))


def test_a_composition_alone_is_gradients_at_every_step():
    assert parse_sync("topk(k=3)").payload == "gradients"
    assert parse_policy("drift(threshold=0.1)") == Drift(0.1) and parse_outer_optimizer("nesterov()") == Nesterov()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("local(sync_every=topk(k=1))", "every, bsp, post_local, drift"),
        ("local(sync_every=0)", "at least 1, got 0"),
        ("local(outer_optimizer=3)", "expected a part"),
        ("local(outer_optimizer=topk(k=1))", "average, sgd, nesterov"),
        ("local(composition=nesterov())", "not a composition"),
        ('local(composition="ef(topk(k=))")', "not a composition"),
        ("local(evry=3)", "no setting 'evry'"),
        ("local(fragment_update_alpha=1.0)", r"\[0, 1\)"),
        ('local(payload="moments")', "deltas, weights, gradients"),
        ("local(num_fragments=0)", "at least 1"),
        ("local(fragment_sync_delay=-1)", "at least 0, got -1"),
        ("local(outer_optimizer=nesterov(lr=-1))", "positive"),
        ("local(outer_optimizer=nesterov(momentum=1.0))", r"\[0, 1\)"),
        ("local(sync_every=drift(threshold=0))", "positive"),
        ("local(sync_every=post_local(start=-1, period=2))", "negative"),
        ("local(sync_every=local())", "every, bsp"),
        ("nesterov()", "not a composition"),
    ],
)
def test_wrong_texts_are_told_what_would_do(text, message):
    with pytest.raises(CompositionError, match=message):
        parse_sync(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('local(sync_every=4, payload="gradients")', "every step"),
        ('local(payload="gradients", outer_optimizer=nesterov())', "outer"),
        ("local(sync_every=4, overlap=true, fragment_sync_delay=2)", "overlap"),
        ("local(sync_every=4, fragment_sync_delay=4)", "before the next"),
        ("local(sync_every=drift(threshold=0.1), num_fragments=2)", "fixed period"),
    ],
)
def test_what_does_not_go_together_is_refused(text, message):
    with pytest.raises(IncompatibleParts, match=message):
        parse_sync(text)


@pytest.mark.parametrize("count", range(1, 6))
def test_fragments_are_neighbours_and_none_is_empty(count):
    layers = [TensorSpec(str(at), (size,)) for at, size in enumerate((1000, 1, 1, 500, 2))]
    groups = split_fragments(layers, count)
    assert "".join(name for names in groups for name in names) == "01234" and len(groups) == count and all(groups)
    with pytest.raises(CompositionError, match="at most the number of layers, 5"):
        split_fragments(layers, 6)


def test_fragments_take_turns_evenly():
    assert initial_steps(16, 4) == [0, 4, 8, 12] and initial_steps(2, 4) == [0, 0, 1, 1]
