"""Parts are registered by a call or a decorator; what cannot be a part is refused with the reason."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import thinwire
from thinwire import CompositionError, IncompatibleParts, describe, parse, to_text
from thinwire.aggregators import Dense, GatherMean, SumMean
from thinwire.catalog import (
    COMPRESSORS,
    KINDS,
    NAMES,
    PARTS,
    REGISTRY,
    is_controller,
    parse_compressor,
    part_text,
    register,
)
from thinwire.catalog.kinds import check_settings, find_kind
from thinwire.catalog.tables import BUILT_IN
from thinwire.compressors import TopK
from thinwire.controllers import Fixed
from thinwire.core import Aggregator, Compressor
from thinwire.feedback import ErrorFeedback
from thinwire.moments import parse_moments
from thinwire.sync import parse_sync
from thinwire.testing import composition_texts, keep_registry
from thinwire.topologies import Ring


@pytest.fixture(autouse=True)
def kept():
    with keep_registry():
        yield


@dataclass(frozen=True)
class MyTopK(TopK):
    """Mine: k·(b + log2(d/k) + 1.5) bits. Biased."""

    shift: int = 0


def test_a_call_registers_a_part_for_texts_listings_and_suggestions():
    assert register("my_topk", MyTopK, typical="density=0.02") is MyTopK
    assert parse("ef(my_topk(density=0.1, shift=2))") == ErrorFeedback(GatherMean(MyTopK(density=0.1, shift=2)))
    assert to_text(MyTopK(k=3)) == "my_topk(k=3)" and part_text(GatherMean(MyTopK(k=3))) == "my_topk(k=3)"
    assert COMPRESSORS["my_topk"] is PARTS["my_topk"] is MyTopK and NAMES[MyTopK] == "my_topk"
    with pytest.raises(CompositionError, match="did you mean 'my_topk'"):
        parse("my_topkk(k=1)")
    (row,) = [row for row in describe.compressor_rows() if row["part"] == "my_topk(density=0.02)"]
    assert row["what it does and costs"].startswith("Mine")


def test_it_is_read_by_every_reader_of_texts():
    register("my_topk", MyTopK)
    assert parse_sync("local(sync_every=4, composition=ef(my_topk(k=3)))").composition == parse("ef(my_topk(k=3))")
    assert parse_moments("my_topk(k=3)").composition == parse("my_topk(k=3)")
    assert parse_compressor("topk(k=9, values=my_topk(k=3))").values == MyTopK(k=3)


def test_a_decorator_registers_and_gives_back_the_class():
    @thinwire.register("mine", examples=["k=3"])
    @dataclass(frozen=True)
    class Mine(TopK):
        pass

    assert parse("mine(k=2)") == GatherMean(Mine(k=2)) and "ef(mine(k=3))" in composition_texts()


def test_a_class_that_is_defined_anew_takes_the_place_of_the_old_one():
    def define():
        @dataclass(frozen=True)
        class Mine(TopK):
            pass

        return register("mine", Mine)

    old, new = define(), define()
    assert type(parse_compressor("mine(k=2)")) is new is not old and old not in NAMES


@pytest.mark.parametrize(
    ("name", "cls", "kind", "words"),
    [
        ("topk", MyTopK, None, r"the name 'topk' is taken by thinwire.compressors.topk.TopK.*'my_topk'"),
        ("again", TopK, None, r"TopK is registered as 'topk' already, got 'again'"),
        ("my topk", MyTopK, None, r"the name must be an identifier such as 'my_topk', got 'my topk'"),
        ("lambda", MyTopK, None, "the name must be an identifier"),
        ("local", MyTopK, None, "the name 'local' is reserved in composition texts"),
        (3, MyTopK, None, "the name must be an identifier such as 'my_topk', got 3"),
        (MyTopK, None, None, r"expected a name, got the class MyTopK; write @register\('mytopk'\)"),
        ("mine", MyTopK(k=3), None, "needs a class, got MyTopK.*not an object"),
        ("mine", MyTopK, "squeezer", "kind must be one of compressor, aggregator, memory.*got 'squeezer'"),
        ("mine", MyTopK, "memory", "MyTopK is not a memory: for a memory, MyTopK lacks init, reduce"),
        (
            "mine",
            dict,
            None,
            "dict implements the protocol of no part: a compressor has encode, decode, contract, num_bytes",
        ),
    ],
)
def test_what_cannot_be_registered_is_refused_with_the_reason(name, cls, kind, words):
    before = dict(REGISTRY.registrations)
    with pytest.raises(CompositionError, match=words):
        register(name, cls, kind=kind)
    assert REGISTRY.registrations == before


def test_a_class_that_is_nearly_a_part_is_told_what_it_lacks():
    class Nearly:
        def encode(self, tensor, key): ...

        def decode(self, payload, spec, key): ...

        def contract(self, spec): ...

    with pytest.raises(CompositionError, match="for a compressor, Nearly lacks num_bytes"):
        register("nearly", Nearly)


@pytest.mark.parametrize(
    ("hint", "default", "words"),
    [
        (
            torch.Tensor | None,
            None,
            r"Odd.odd is Tensor, which a text cannot express.*field\(default=..., repr=False\)",
        ),
        (Callable[[], int] | None, None, "Odd.odd is Callable, which a text cannot express"),
        (list[int], field(default_factory=list), "Odd.odd is list"),
        (Any, None, "Odd.odd is Any"),
    ],
)
def test_settings_that_a_text_cannot_express_are_refused(hint, default, words):
    class Odd(TopK):
        __annotations__ = {"odd": hint}
        odd = default

    with pytest.raises(CompositionError, match=words):
        register("odd", dataclass(frozen=True)(Odd))


def test_a_class_that_is_no_dataclass_is_refused_with_the_remedy():
    class Plain:
        def encode(self, tensor, key): ...

        def decode(self, payload, spec, key): ...

        def contract(self, spec): ...

        def num_bytes(self, spec): ...

    with pytest.raises(CompositionError, match=r"Plain is not a dataclass.*@dataclass\(frozen=True\).*its objects"):
        register("plain", Plain)


def test_hidden_fields_may_hold_anything():
    @dataclass(frozen=True)
    class Hiding(TopK):
        weights: torch.Tensor | None = field(default=None, repr=False)

    register("hiding", Hiding)
    assert to_text(Hiding(k=3, weights=torch.ones(2))) == "hiding(k=3)"


@pytest.mark.parametrize("entry", BUILT_IN, ids=lambda entry: entry.name)
def test_our_own_parts_could_be_registered_by_other_packages(entry):
    check_settings(entry.cls)
    assert find_kind(entry.cls) == entry.kind or (entry.kind, find_kind(entry.cls)) == ("aggregator", "memory")


def test_tables_grow_with_the_registry_and_forget_with_it():
    tables = KINDS | {"others": {}}
    with keep_registry():
        register("mine", MyTopK)
        assert "mine" in tables["compressors"] and "mine" in PARTS and len(PARTS) == len(REGISTRY.registrations)
    assert "mine" not in tables["compressors"] and "mine" not in tables["aggregators"] and MyTopK not in NAMES


def test_controllers_are_known_by_what_they_do():
    class Mine(Fixed):
        pass

    assert is_controller(Mine()) and not is_controller(TopK(k=1)) and not is_controller(Ring())
    with pytest.raises(CompositionError, match="is a controller; expected an aggregator"):
        thinwire.catalog.as_aggregator(Mine(), "Mine()")


def test_plans_by_layer_have_a_text():
    text = "switch(topk(k=3), dense(), controller=fixed(plan={'a': 1}))"
    assert to_text(parse(text)) == text


def test_a_part_with_a_tunable_setting_of_its_own_makes_a_menu():
    @dataclass(frozen=True)
    class Coarse(TopK):
        tunable = thinwire.core.Tunable("level", 0.5, 2)
        level: int = 4

    register("coarse", Coarse)
    options = parse("adapt(coarse(k=3), controller=fixed())").menu.options
    assert [part.compressor.level for part in options] == [2, 3, 4, 5, 6, 7, 8]


def test_an_aggregator_around_parts_is_written_as_it_is_read():
    @dataclass(frozen=True)
    class Both:
        """Both, one after the other."""

        first: Compressor
        inner: Aggregator[Any]

        def init(self, spec, key):
            return self.inner.init(spec, key)

        def reduce(self, tensor, spec, state, ctx):
            return self.inner.reduce(tensor, spec, state, ctx)

    register("both", Both)
    assert REGISTRY.registrations["both"].kind == "aggregator"
    text = "both(topk(k=3), dense())"
    assert parse(text) == Both(TopK(k=3), Dense()) and to_text(parse(text)) == text
    with pytest.raises(IncompatibleParts, match="SumMean"):
        SumMean(TopK(k=3))
