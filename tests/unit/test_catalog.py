import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.cases import COMPOSITION_TEXTS, COMPRESSOR_TEXTS
from thinwire import CompositionError, IncompatibleParts, ThinwireError, parse, to_text
from thinwire.aggregators import Dense, GatherMean, SumMean
from thinwire.catalog import PARTS, parse_compressor
from thinwire.compressors import Cast, Identity, RandomK, TopK
from thinwire.feedback import ErrorFeedback
from thinwire.moments import parse_moments
from thinwire.sync import parse_outer_optimizer, parse_policy, parse_sync


@pytest.mark.parametrize("text", COMPOSITION_TEXTS)
def test_parse_reads_back_what_was_written(text):
    assert parse(to_text(parse(text))) == parse(text)


@pytest.mark.parametrize("text", COMPRESSOR_TEXTS)
def test_compressors_too(text):
    assert parse_compressor(to_text(parse_compressor(text))) == parse_compressor(text)


def test_the_issue_example_is_read_and_written_as_it_stands():
    text = 'ef(topk(density=0.01, values="bf16"))'
    assert parse(text) == ErrorFeedback(GatherMean(TopK(density=0.01, values=Cast("bf16"))))
    assert to_text(parse(text)) == text


def test_a_bare_compressor_means_its_default_aggregator():
    assert parse("topk(k=3)") == GatherMean(TopK(k=3))
    assert parse("randomk(k=3)") == SumMean(RandomK(k=3))
    assert parse('randomk(k=3, values="bf16")') == GatherMean(RandomK(k=3, values=Cast("bf16")))
    assert parse("identity") == SumMean(Identity())
    assert parse("dense") == Dense()
    assert to_text(parse("gather(randomk(k=3))")) == "gather(randomk(k=3))"


@pytest.mark.parametrize(
    ("text", "mark", "words"),
    [
        ("topk(density=2)", 0, "density must be in (0, 1], got 2.0; 0.01 keeps one coordinate in a hundred"),
        ("ef(topk(density=1.5))", 3, "density must be in"),
        ("ef(", 2, "this is not a composition"),
        ("ef(tpok(k=1))", 3, "no part is called 'tpok'; did you mean 'topk'? compressors are identity"),
        (
            "ef(topk(densty=1))",
            15,
            "topk has no setting 'densty' here; it has density, k, values (did you mean 'density'?)",
        ),
        ('topk(density="a")', 13, "expected float or none, got 'a'"),
        ("topk(k=2.5)", 7, "expected int or none, got 2.5"),
        ("randomk(k=2, scaled=1)", 20, "expected bool, got 1"),
        ("topk(3)", 5, "topk takes its settings as keyword arguments"),
        ("ef()", 0, "ef needs its inner"),
        ("ef(inner=topk(k=1), inner=dense)", 26, None),
        ('topk(k=3, values="fp8")', 17, "Cast: dtype must be one of fp32, fp16, bf16, got 'fp8'"),
        ("topk(k=3, values=dense())", 17, "'dense()' is an aggregator; expected a compressor"),
        ("qsgd(bits=1)", 0, "bits must be 2 to 16"),
        ("ef(1 + 2)", 3, "expected a part, got '1 + 2'"),
        ("__import__('os')", 0, "no part is called '__import__'"),
        ("", 0, "this is not a composition"),
    ],
)
def test_errors_point_at_the_place(text, mark, words):
    with pytest.raises(CompositionError) as caught:
        parse(text)
    message, shown, pointer = str(caught.value).rsplit("\n", 2)
    assert words is None or words in message
    assert shown.strip() == text
    assert words is None or pointer.index("^") - 2 == mark


def test_parts_that_do_not_fit_are_refused_by_name():
    with pytest.raises(
        IncompatibleParts, match=r"SumMean adds payloads on the wire; TopK's payloads cannot be added\. Use GatherMean"
    ):
        parse("ef(sum(topk(k=3)))")


def test_a_part_of_somebody_else_has_no_text():
    class Mine:
        pass

    with pytest.raises(CompositionError, match="Mine is not in the catalog"):
        to_text(Mine())


@settings(max_examples=400, deadline=None)
@given(
    st.lists(
        st.sampled_from([*PARTS, "(", ")", ",", "=", "k", "density", "0.1", "3", '"bf16"', "-", "[", "lambda", "é"])
    )
)
def test_any_text_is_read_or_refused_never_worse(words):
    try:
        part = parse("".join(words))
    except ThinwireError:
        return
    assert parse(to_text(part)) == part


@pytest.mark.parametrize(
    ("read", "text", "words"),
    [
        (parse, "ef(topk(k=1), residual_type=3)", "it has inner, residual_dtype (did you mean 'residual_dtype'?)"),
        (parse, "TopK(k=1)", "no part is called 'TopK'; did you mean 'topk'? compressors are identity"),
        (parse, "gossip(sign(), rign())", "did you mean 'ring'? topologies are complete, ring"),
        (parse, "ef(adapt(qsgd(), controller=lgrco()))", "did you mean 'lgreco'? controllers are fixed"),
        (parse, "zzz()", "no part is called 'zzz'; compressors are identity"),
        (parse_compressor, "tok(k=1)", "did you mean 'topk'?"),
        (parse_outer_optimizer, "nesterof()", "did you mean 'nesterov'? outer optimizers are average, sgd, nesterov"),
        (
            parse_outer_optimizer,
            "rmsprob()",
            "did you mean 'rmsprop'? outer optimizers are average, sgd, nesterov, adam, a",
        ),
        (
            parse_outer_optimizer,
            "shampoo()",
            "no part is called 'shampoo'; outer optimizers are average, sgd, nesterov, adam, a",
        ),
        (parse_policy, "post_locl(start=1)", "did you mean 'post_local'? policies are every, bsp, post_local, drift"),
        (parse_policy, "often()", "no part is called 'often'; policies are every, bsp, post_local, drift"),
        (parse_sync, "local(outer_optimizer=nestrov())", "did you mean 'nesterov'? outer optimizers are"),
        (parse_moments, "momnets(dense())", "did you mean 'moments'?"),
    ],
)
def test_an_unknown_name_is_told_what_was_meant_and_the_names_of_its_kind(read, text, words):
    with pytest.raises(CompositionError) as caught:
        read(text)
    assert words in str(caught.value)
    assert "did you mean" not in words or "hypercube" not in str(caught.value) or "topologies" in words
