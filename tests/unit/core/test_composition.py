"""Compositions as trees."""

from dataclasses import replace

import torch

from thinwire import parse
from thinwire.aggregators.options import with_setting
from thinwire.compressors import ImpK, ImportanceTopK, TopK
from thinwire.core import parts_of, rebuild, with_importance


def names(text):
    return [type(part).__name__ for part in parts_of(parse(text))]


def test_parts_come_from_the_outside_in():
    assert names("ef(switch(topk(k=1), scheduled(scam(impk(density=0.1)))))") == [
        "ErrorFeedback", "Switch", "GatherMean", "TopK", "DensitySchedule", "SCAM", "GatherMean", "ImpK"
    ]  # fmt: skip


def test_second_stages_are_left_out_because_they_see_other_vectors():
    assert names("topk(k=5, values=impk(k=2))") == ["GatherMean", "TopK"]


def test_where_nothing_changes_the_same_object_comes_back():
    composition = parse("ef(switch(topk(k=1), dense()))")
    assert rebuild(composition, lambda part: None) is composition


def test_every_fitting_part_is_replaced_wherever_it_is():
    def double(part):
        return replace(part, k=2 * part.k) if isinstance(part, TopK) else None

    changed = rebuild(parse("ef(switch(topk(k=1), two_hop(topk(k=3)), dense()))"), double)
    assert changed == parse("ef(switch(topk(k=2), two_hop(topk(k=6)), dense()))")


def test_the_walk_enters_only_what_it_may():
    composition = parse("ef(switch(topk(density=0.5), dense()))")
    assert with_setting(composition, "density", 0.1) is None  # entries of a menu differ for a reason
    assert with_setting(parse("ef(scam(topk(k=3)))"), "density", 0.1) == parse("ef(scam(topk(density=0.1)))")


def test_importance_reaches_every_part_that_takes_one_and_is_no_setting():
    w = torch.rand(2, 3)
    given = with_importance(parse("ef(switch(impk(k=1), importance_topk(k=1), topk(k=1)))"), w)
    takers = [part for part in parts_of(given) if isinstance(part, ImpK | ImportanceTopK)]
    assert len(takers) == 2 and all(torch.equal(part.importance, w.flatten()) for part in takers)
    assert given == parse("ef(switch(impk(k=1), importance_topk(k=1), topk(k=1)))")
    assert "importance" not in repr(given)
