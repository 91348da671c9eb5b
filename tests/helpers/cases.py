"""What the suites run over: every registered part with its examples, and combinations of several."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from thinwire.catalog import parse, parse_compressor
from thinwire.core import Aggregator, Compressor, parts_of
from thinwire.testing import (
    DTYPES,
    KINDS,
    SHAPES,
    composition_texts,
    compressor_texts,
    controller_texts,
    draw,
    topology_texts,
)

__all__ = ["DTYPES", "KINDS", "SHAPES", "draw"]

COMPRESSOR_TEXTS = compressor_texts()
TOPOLOGY_TEXTS = topology_texts()

MIXING_TEXTS = [  # ranks end with differing values
    "gossip(identity(), ring())",
    "gossip(identity(), complete())",
    "gossip(threshold(tau=0.5), rotating())",
    "gossip(qsgd(), rotating(equal_pairs=true))",
    'gossip(topk(density=0.1), star(), self_term="exact")',
    "ef(gossip(topk(density=0.1), ring()))",
    'ef(gossip(topk(density=0.1, values="bf16"), exponential(), self_term="exact"))',
    "ef(gossip(sign(), exponential(one_peer=true)))",
    "ef(gossip(randomk(density=0.25), torus()))",
    "scam(gossip(topk(density=0.1), rotating()))",
    "dgc(gossip(topk(density=0.1), ring()))",
    'ef(switch(gossip(topk(density=0.1), ring()), gossip(qsgd(), rotating())), residual_dtype="int8")',
    "ef(flatten(gossip(topk(density=0.1), ring())))",
    "choco(topk(density=0.1), ring())",
    "choco(qsgd(), exponential(), gamma=0.5)",
]

MENU_TEXTS = [  # other menus than those that every controller is tried with
    'adapt(powersgd(rank=2, min_saving=1.0), qsgd(), controller=lgreco(every=2, start=1, errors_from="rank0"))',
    'ef(adapt(qsgd(), controller=lgreco(every=3, start=2, solver="lagrangian", observed="gradient", error="squared")))',
    "ef(switch(topk(density=0.1), dense(), controller=accordion(every=1, eta=0.1)))",
    'ef(adapt(qsgd(), powersgd(rank=2, min_saving=1.0), controller=kmeans(every=3, start=1, clusters=2, errors_from="rank0")))',
]
CONTROLLER_TEXTS = [*controller_texts(), *MENU_TEXTS]  # they decide more often than in practice

COMBINATIONS = [
    "ef(switch(topk(density=0.1), qsgd(), dense()))",
    "ef(adapt(sketch(topk(density=0.1)), dense(), controller=fixed(default=1)))",
    "ef(flatten(qsgd()))",
    "ef(flatten(two_hop(topk(density=0.1))))",
    "ef21(flatten(topk(density=0.1)))",
    "ef(switch(flatten(topk(density=0.1)), flatten(randomk(density=0.25)), dense()))",
    "ef(ef21(topk(density=0.1)))",
    "scam(threshold(tau=0.5))",
    "scam(two_hop(topk(density=0.1)))",
    "scam(impk(density=0.1))",
    "scam(two_hop(importance_sampling(k=4)))",
    "ef21(impk(density=0.2))",
    "ef(two_hop(impk(density=0.1)))",
    "ef(scheduled(importance_topk(density=0.5), start=0.5, end=0.1, steps=3))",
    'ef(switch(impk(density=0.1, weights="normalized"), dense()))',
    'ef(two_hop(topk(k=6, values="bf16")))',
    "ef(two_hop(uniform(bits=4)))",
    "ef21(two_hop(topk(density=0.2)))",
    "ef(two_hop(threshold(tau=0.5)))",
    'ef(scheduled(topk(density=0.5), start=0.5, end=0.1, steps=3, shape="cosine"))',
    "ef(sketch(topk(density=0.1)))",
    'ef(sketch(topk(density=0.1), cells=0.3, index="bloom"))',
    'ef(sketch(topk(density=0.3), cells=0.3, on_failure="median"))',
    "ef(sketch(sign(), cells=0.6, exact=true))",
    "scam(sketch(topk(density=0.1)))",
    "ef(union(topk(density=0.1)))",
    'ef(union(threshold(tau=1.5), index="bloom"))',
    "ef21(svd(rank=1))",
    "ef21(st_hosvd(rank=1))",
    "two_hop(svd(rank=1))",
    "ef(powersgd(rank=1, dims=(6, 4), alternate=true))",
    'ef(powersgd(rank=1, dims=(6, 4), subtract="mean"))',
    "ef21(powersgd(rank=1))",
    "ef(parameter_server(topk(density=0.1), downlink=topk(density=0.2), shards=3))",
    "ef(parameter_server(qsgd(), downlink=sign(), shards=64))",
    "ef21(parameter_server(topk(density=0.1), shards=2))",
    "scam(parameter_server(topk(density=0.1), shards=2))",
]
COMPOSITION_TEXTS = list(dict.fromkeys([*composition_texts(), *CONTROLLER_TEXTS, *COMBINATIONS, *MIXING_TEXTS]))


def structure_of(text: str) -> tuple[str, ...]:
    """Aggregators, memories, controllers and topologies of a composition, in order, with the form of a residual.

    Compressors have no state, and aggregators hand their payloads on as bytes: a law about memories, steps and resuming
    that holds for one compressor holds for all.
    """
    parts = [part for part in parts_of(parse(text)) if isinstance(part, Aggregator) or not isinstance(part, Compressor)]
    return tuple(f"{type(part).__name__} {getattr(part, 'residual_dtype', '')}" for part in parts)


def family_of(text: str) -> tuple[str, ...]:
    """`structure_of`, and the base class of each compressor: how its payloads are made."""
    inside = [part for part in parts_of(parse(text)) if isinstance(part, Compressor)]
    bases = [type(part).__mro__[1] if len(type(part).__mro__) > 2 else type(part) for part in inside]
    return (*structure_of(text), *(base.__name__ for base in bases))


def one_of_each(texts: Sequence[str], key: Callable[[str], Hashable]) -> list[str]:
    """The first text of each group."""
    first: dict[Hashable, str] = {}
    for text in texts:
        first.setdefault(key(text), text)
    return list(first.values())


STRUCTURE_TEXTS = one_of_each(COMPOSITION_TEXTS, structure_of)


def compressors() -> list[Compressor]:
    return [parse_compressor(text) for text in COMPRESSOR_TEXTS]


def compositions() -> list[Aggregator[Any]]:
    return [parse(text) for text in COMPOSITION_TEXTS]
