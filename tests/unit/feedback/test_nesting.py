"""A memory inside a memory: refused where both keep the same loss."""

import pytest

from thinwire import IncompatibleParts, parse
from thinwire.compressors import TopK
from thinwire.feedback import ErrorFeedback

REFUSED = [
    "ef(ef(topk(k=3)))",
    "ef(dgc(topk(k=3)))",
    "ef(switch(ef(topk(k=3)), dense()))",
    "dgc(ef(topk(k=3)))",
    "dgc(dgc(topk(k=3)))",
    "dgc(ef21(topk(k=3)))",
    "ef21(ef(topk(k=3)))",
    "ef21(dgc(topk(k=3)))",
    "ef21(ef21(topk(k=3)))",
]


@pytest.mark.parametrize("text", REFUSED)
def test_two_memories_of_one_error_are_refused(text):
    with pytest.raises(IncompatibleParts, match=r"both keep the same residual.*use one memory"):
        parse(text)


@pytest.mark.parametrize("text", ("ef(scam(topk(k=3)))", "ef(ef21(topk(k=3)))", "switch(ef(topk(k=3)), ef21(sign()))"))
def test_memories_of_different_errors_may_be_combined(text):
    assert parse(text)


def test_a_memory_refuses_inner_parts_by_name():
    with pytest.raises(IncompatibleParts, match=r"ErrorFeedback wraps an aggregator, got TopK.*GatherMean\(TopK"):
        ErrorFeedback(TopK(k=3))
