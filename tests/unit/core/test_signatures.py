"""Parts as texts that ranks compare, and names that were meant."""

from dataclasses import dataclass, field

import pytest
import torch

from thinwire import CompositionError, parse, to_text
from thinwire.aggregators import GatherMean
from thinwire.catalog import part_text
from thinwire.compressors import Cast, TopK
from thinwire.core import closest, did_you_mean, signature_of
from thinwire.feedback import ErrorFeedback


@dataclass(frozen=True)
class Own(TopK):
    weights: torch.Tensor | None = None
    names: tuple[str, ...] = ()
    seen: int = field(default=0, repr=False)  # what is given while running is no setting


class Odd:
    pass


class Named(Odd):
    def signature(self):
        return "level=3"


def test_a_signature_has_class_path_and_settings():
    assert signature_of(Own(density=0.1)).endswith(
        "test_signatures.Own(density=0.1, k=None, values=thinwire.compressors.identity.Identity(), weights=None, names=())"
    )
    assert signature_of(Named()).endswith("test_signatures.Named(level=3)")


def test_signatures_differ_where_settings_do():
    first = Own(k=3, weights=torch.ones(3), names=("a", "b"))
    assert signature_of(first) == signature_of(Own(k=3, weights=torch.ones(3), names=("a", "b"), seen=7))
    for other in (Own(k=4), Own(k=3, weights=torch.zeros(3), names=("a", "b")), Own(k=3, names=("a", "b"))):
        assert signature_of(other) != signature_of(first)


def test_a_long_signature_is_a_digest():
    long = signature_of(Own(k=3, names=("name",) * 100))
    assert len(long) < 200 and "Own(#" in long and long != signature_of(Own(k=3, names=("name",) * 101))


def test_what_has_no_signature_is_refused_with_the_remedy():
    with pytest.raises(CompositionError, match=r"Odd is neither in the catalog nor a dataclass.*signature\(\)"):
        signature_of(Odd())


def test_texts_of_listed_parts_stay_and_others_stand_inside_them():
    for text in ("ef(topk(density=0.01))", 'topk(k=3, values="bf16")', "gossip(identity(), ring())"):
        assert part_text(parse(text)) == to_text(parse(text)) == text
    shown = part_text(ErrorFeedback(GatherMean(Own(k=3))))
    assert shown.startswith("ef(") and "Own(density=None, k=3, values=identity()" in shown
    assert part_text(TopK(k=3, values=Own(k=2))).startswith("topk(k=3, values=")
    with pytest.raises(CompositionError, match="Own is not in the catalog"):
        to_text(ErrorFeedback(GatherMean(Own(k=3))))


def test_a_subclass_of_a_cast_is_not_taken_for_it():
    class Rounded(Cast):
        pass

    assert "Rounded" in part_text(TopK(k=3, values=Rounded("bf16")))


def test_the_closest_name_whatever_its_case():
    assert closest("TopK", ["qsgd", "topk"]) == "topk" and closest("zzz", ["topk"]) is None
    assert did_you_mean("densty", ["density", "k"]) == " (did you mean 'density'?)"
    assert did_you_mean("zzz", ["topk"]) == ""
