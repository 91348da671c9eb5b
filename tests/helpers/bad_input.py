"""Input that the catalog and the command line refuse: one for each error, for tests/golden."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from thinwire import Exchanger, TensorSpec, World, parse, register, to_text
from thinwire.catalog import REGISTRY, parse_compressor
from thinwire.catalog.kinds import settings_of
from thinwire.catalog.patterns import assign_composition
from thinwire.catalog.reader import as_aggregator
from thinwire.compressors import TopK
from thinwire.controllers import Fixed
from thinwire.core import SendForm, derive_key
from thinwire.feedback import EF21

Call = Callable[[], Any]
BAD_VALUES = ("-1", "0", "1.5", '"no such"', "()", "(0,)", "none", "topk(density=0.1)", "ring()", "fixed()")


def bad_settings() -> Iterator[tuple[str, Call]]:
    """Every setting of every part with values that are wrong for most."""
    for entry in REGISTRY.registrations.values():
        examples = [*entry.typical, *entry.examples, ""]
        for setting in settings_of(entry.cls):
            for value in BAD_VALUES:
                kept = ", ".join(
                    part for part in split_settings(examples[0]) if not part.startswith(f"{setting.name}=")
                )
                text = f"{entry.name}({kept + ', ' if kept else ''}{setting.name}={value})"
                yield text, partial(parse, text)


def split_settings(text: str) -> list[str]:
    """Between commas that are in no parentheses."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


class NoPart:
    """Has no method of a part."""


class HalfCompressor:
    """Lacks two of a compressor's methods."""

    def encode(self, tensor: Any, key: Any) -> Any: ...

    def decode(self, payload: Any, spec: Any, key: Any) -> Any: ...


class NoDataclass(HalfCompressor):
    def contract(self, spec: Any) -> Any: ...

    def num_bytes(self, spec: Any) -> Any: ...


@dataclass(frozen=True)
class OddSetting(NoDataclass):
    raw: bytes = b""


@dataclass(frozen=True)
class LoneTuple(NoDataclass):
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class UnknownType(NoDataclass):
    other: NotImported  # type: ignore[name-defined]  # noqa: F821


@dataclass(frozen=True)
class Named(NoDataclass):
    pass


@dataclass(frozen=True)
class DifferenceSender:
    """An aggregator of another package that sends differences and does not declare it."""

    def init(self, spec: Any, key: Any) -> Any:
        return ()

    def reduce(self, tensor: Any, spec: Any, state: Any, ctx: Any) -> Any: ...

    def send_form(self) -> SendForm:
        return SendForm(None, lambda sender: sender, sends_differences=True)


LAYERS = [TensorSpec("first.weight", (64, 64)), TensorSpec("first.bias", (64,))]
WORLD = World(0, 3)


def _exchange(composition: str) -> Any:
    aggregator = parse(composition)
    return Exchanger(LAYERS, dict.fromkeys(["first.weight", "first.bias"], aggregator))


def _importance() -> Any:
    compressor = parse_compressor("impk(density=0.1)").with_importance(torch.ones(3))  # type: ignore[attr-defined]
    return compressor.encode(torch.ones(4), derive_key(0))


def _topology(text: str) -> Any:
    return parse(f"gossip(identity(), {text})").topology.weights(WORLD, 0)  # type: ignore[attr-defined]


def _texts(*texts: str) -> list[tuple[str, Call]]:
    return [(text, partial(parse, text)) for text in texts]


CATALOG_CALLS: list[tuple[str, Call]] = [
    *_texts(
        "topk(k=0)",
        "threshold(count=0)",
        "tensor_train(max_error=2.0)",
        "nearest_power2(max_exponent=400)",
        "st_hosvd()",
        "st_hosvd(ranks=(1, 2), dims=(4, 4, 4))",
        "switch()",
        "adapt()",
        "adapt(topk(density=0.1))",
        "adapt(dense(), controller=lgreco())",
        "choco(topk(density=0.1), rotating())",
        "scheduled(qsgd())",
        "flatten(powersgd(rank=4))",
        "flatten(switch(topk(density=0.1), dense()))",
        "sum(topk(density=0.1))",
        "two_hop(randomk(density=0.1))",
        "ef21(gossip(topk(density=0.1), ring()))",
        "ef(ef(topk(density=0.1)))",
        "scam(qsgd())",
        'lgreco(objective="time", start=1)',
        'adapt(topk(density=0.1), controller=lgreco(objective="time", start=1))',
        "gossip(identity(), matrix(rows=((0.5, 2.0), (0.5, 0.5))))",
        "gossip(identity(), matrix(rows=((0.5, 0.4), (0.5, 0.5))))",
        'gossip(identity(), matrix(file="no-such-file"))',
        "gossip(identity())",
        "topk(density=0.1, 3)",
        "topk(densty=0.1)",
        "tpk(density=0.1)",
        "topk(density=0.1",
        "",
        "ef" * 3,
        "ef(" * 300 + "dense()" + ")" * 300,
    ),
    ("parse_compressor('dense()')", lambda: parse_compressor("dense()")),
    ("attach(model, TopK)", lambda: as_aggregator(TopK, "attach: composition")),
    ("attach(model, 3)", lambda: as_aggregator(3, "attach: composition=3")),
    ("attach(model, {})", lambda: assign_composition(LAYERS, {})),
    ("attach(model, {3: 'dense()'})", lambda: assign_composition(LAYERS, {3: "dense()"})),  # type: ignore[dict-item]
    ("attach(model, {'*.wight': 'dense()'})", lambda: assign_composition(LAYERS, {"*.wight": "dense()"})),
    (
        "attach(model, {'*': 'dense()', 'first*': 'qsgd()'})",
        lambda: assign_composition(LAYERS, {"*": "dense()", "first*": "qsgd()"}),
    ),
    ("register(TopK)", lambda: register(TopK)),  # type: ignore[call-overload]
    ("register('no name', Named)", lambda: register("no name", Named)),
    ("register('none', Named)", lambda: register("none", Named)),
    ("register('mine', Named())", lambda: register("mine", Named())),  # type: ignore[call-overload]
    ("register('mine', NoPart)", lambda: register("mine", NoPart)),
    ("register('mine', HalfCompressor)", lambda: register("mine", HalfCompressor)),
    ("register('mine', Named, kind='part')", lambda: register("mine", Named, kind="part")),
    ("register('mine', Named, kind='topology')", lambda: register("mine", Named, kind="topology")),
    ("register('mine', NoDataclass)", lambda: register("mine", NoDataclass)),
    ("register('mine', OddSetting)", lambda: register("mine", OddSetting)),
    ("register('mine', LoneTuple)", lambda: register("mine", LoneTuple)),
    ("register('mine', UnknownType)", lambda: register("mine", UnknownType)),
    ("register('other', TopK)", lambda: register("other", TopK)),
    ("register('topk', Named)", lambda: register("topk", Named)),
    ("to_text(Named())", lambda: to_text(Named())),
    ("impk with the importance of another layer", _importance),
    ("serve(..., EF21(DifferenceSender()))", lambda: EF21(DifferenceSender()).send_form()),
    ("hypercube() with 3 ranks", lambda: _topology("hypercube()")),
    ("star(center=7) with 3 ranks", lambda: _topology("star(center=7)")),
    ("matrix of 2 rows with 3 ranks", lambda: _topology("matrix(rows=((0.5, 0.5), (0.5, 0.5)))")),
    (
        "by_size() with a menu of three",
        lambda: _exchange("switch(topk(density=0.1), qsgd(), dense(), controller=by_size())"),
    ),
    ("two menus in one composition", lambda: _exchange("switch(switch(dense(), qsgd()), dense())")),
    ("Fixed(plan={'no.layer': 1})", lambda: Fixed(plan={"no.layer": 1}).init(LAYERS)),
]

COMMAND_LINES: list[list[str]] = [
    [],
    ["no-such-command"],
    ["parts", "--no-such-flag"],
    ["run"],
    ["run", "no-such-experiment"],
    ["run", "no-such-file.toml"],
    ["run", "demo", "--jobs", "two"],
    ["run", "demo", "--seeds", "x"],
    ["run", "demo", "--methods", "no such method"],
    ["resume", "no-such-folder"],
    ["show", "no-such-folder"],
    ["compare", "no-such-folder", "no-such-folder"],
    ["report", "no-such-folder"],
    ["report", "no-such-folder", "--png"],
    ["serve"],
    ["serve", "no-such-task"],
    ["serve", "digits", "--composition", "topk(density=2)"],
    ["serve", "digits", "--composition", "powersgd(rank=4)"],
    ["serve", "digits", "--optimizer", "no_such()"],
    ["serve", "digits", "--workers", "0"],
    ["serve", "digits", "--resume"],
    ["serve", "digits", "--address", "0.0.0.0:0"],
    ["serve", "digits", "--secret-file", "no-such-file"],
    ["join"],
    ["join", "digits", "no-such-address"],
    ["join", "digits", "127.0.0.1:1", "--shard", "3/2"],
    ["bench"],
    ["bench", "ddp", "--model", "no-such"],
    ["bench", "ddp", "--rate", "fast"],
    ["bench", "ddp", "--method", "no-such"],
    ["bench", "ddp", "--repeat", "0"],
    ["bench", "overhead", "--composition", "topk(density=2)"],
    ["bench", "growth", "--rate", "lo"],
    ["bench", "growth", "--millions", "9000"],
    ["testbed", "run", "--rate", "fast", "--", "true"],
    ["testbed", "run", "--workers", "0", "--", "true"],
    ["verify-wire", "topk(density=2)"],
    ["verify-wire", "dense()", "--workers", "1"],
]
