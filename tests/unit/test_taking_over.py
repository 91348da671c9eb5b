"""Another composition goes on with a memory: what was before_change is kept, or it is said that it is not."""

from __future__ import annotations

import pytest
import torch

from helpers.memory_cases import LAYERS, MEMORIES, TAKE_RESIDUALS, composed, mass, slack, train, trained
from thinwire import Exchanger, World, catalog, parse
from thinwire.core import flatten_state


def test_every_memory_of_the_catalog_is_among_them():
    assert all(any(f"{name}(" in text for text in MEMORIES) for name in catalog.MEMORIES)


@pytest.mark.parametrize("before", MEMORIES)
def test_state_is_transferred_or_its_loss_is_reported(before):
    olds = trained(before)
    before_change = [{kind: mass(old, kind) for kind in ("residual", "velocity", "estimate")} for old in olds]
    for after in MEMORIES:
        news = [Exchanger(LAYERS, composed(after), seed=3) for _ in olds]
        dropped = [new.take_over(old, 4, World(r, 2)) for r, (new, old) in enumerate(zip(news, olds, strict=True))]
        assert dropped[0] == dropped[1]
        for new, kinds in zip(news, before_change, strict=True):
            for kind, layers in kinds.items():
                assert_kept_or_dropped(new, after, kind, layers, dropped[0])
        lost = any("'s residual of" in text for text in dropped[0])
        takes = any(part in after for part in TAKE_RESIDUALS)
        assert lost == (not takes and any(bool(one.any()) for one in before_change[0]["residual"].values()))
        train(news, [4])
        for new in news:  # what it has now can be stored and loaded
            Exchanger(LAYERS, composed(after), seed=3).load_state_dict(new.state_dict())


def assert_kept_or_dropped(new, after, kind, layers, dropped):
    now, complaints = mass(new, kind), [text.partition(" is dropped")[0] for text in dropped if f"'s {kind} of" in text]
    for name, then in layers.items():
        if not any(name in text for text in complaints):
            assert (now[name].float() - then.float()).abs().max() <= slack(after, then), (kind, name, dropped)


@pytest.mark.parametrize("text", MEMORIES)
def test_the_same_composition_goes_on_bit_for_bit(text):
    straight, changed = trained(text), trained(text)
    news = [Exchanger(LAYERS, composed(text), seed=3) for _ in changed]
    for rank, (new, old) in enumerate(zip(news, changed, strict=True)):
        assert new.take_over(old, 4, World(rank, 2)) == []
    train(straight, range(4, 8))
    train(news, range(4, 8))
    for a, b in zip(straight, news, strict=True):
        assert a.plans == b.plans and a.plan == b.plan
        for name in a.layers:
            ours, theirs = flatten_state(a.states[name]), flatten_state(b.states[name])
            assert all(torch.equal(torch.as_tensor(ours[key]), torch.as_tensor(theirs[key])) for key in ours)


def test_powersgds_factors_stay_where_the_part_stays():
    (old, _), new = (
        trained("ef(powersgd(rank=1))"),
        Exchanger(LAYERS, parse('ef(powersgd(rank=1), residual_dtype="bf16")')),
    )
    assert new.take_over(old, 4, World(0, 2)) == []
    assert torch.equal(new.states["w"].inner.right, old.states["w"].inner.right)


def test_what_is_dropped_is_named_with_layers_and_reason():
    (old, _), new = trained("dgc(topk(density=0.05))"), Exchanger(LAYERS, parse("dense()"))
    residual, velocity = new.take_over(old, 4, World(0, 2))
    assert residual == (
        "DGC's residual of w, v, h is dropped, because Dense cannot adopt it: it was not sent yet and will not be"
    )
    assert velocity.startswith("DGC's velocity of w, v, h is dropped") and "momentum of its own" in velocity


def test_importance_goes_over_and_those_who_fill_it_go_on_filling_it():
    old, new = (Exchanger(LAYERS, parse(f"ef({part}(density=0.1))")) for part in ("impk", "importance_topk"))
    filled = old.importance  # as a Refresher holds it
    filled["w"] = torch.full((20, 30), 2.0)
    assert new.take_over(old, 0, World(0, 1)) == []
    assert torch.equal(new.importance["w"], torch.full((20, 30), 2.0))
    filled["v"] = torch.ones(7)
    assert "v" in new.importance
    third = Exchanger(LAYERS, parse("ef(topk(density=0.1))"))
    (dropped,) = third.take_over(new, 0, World(0, 1))
    assert "importance of w, v is dropped" in dropped and not third.importance
    assert "importance" in third.state_dict()
