"""Variants of a part that isolate what it does itself: with exact or with sparse parts inside."""

from __future__ import annotations

from typing import Any

from ..aggregators import GatherMean
from ..compressors import Identity, TopK
from ..core import (
    Aggregator,
    Capability,
    CompositionError,
    Compressor,
    IncompatibleParts,
    has,
    parts_of,
    rebuild,
)


def is_leaf(part: Any) -> bool:
    """Whether a part has no aggregator inside."""
    return not any(isinstance(inside, Aggregator) for inside in list(parts_of(part))[1:])


def inside_has(part: Any, capability: Capability) -> bool:
    return any(has(inside, capability) for inside in list(parts_of(part))[1:])


def replace_leaves(part: Any, leaf: Aggregator[Any]) -> Any:
    """Replace all innermost aggregators by `leaf`; None if the parts around refuse it."""

    def change(inside: Any) -> Any:
        return leaf if inside is not part and isinstance(inside, Aggregator) and is_leaf(inside) else None

    return _or_none(part, change)


def with_compressor(part: Any, compressor: Compressor) -> Any:
    """Replace the compressors inside; None if the part refuses it."""
    return _or_none(part, lambda inside: compressor if inside is not part and isinstance(inside, Compressor) else None)


def _or_none(part: Any, change: Any) -> Any:
    try:
        return rebuild(part, change)
    except (CompositionError, IncompatibleParts):
        return None


def make_exact(part: Any) -> Any:
    """The part with lossless parts inside; None if there is no such variant."""
    every = TopK(density=1.0)
    if not is_leaf(part):
        return replace_leaves(part, GatherMean(every))
    plain = with_compressor(part, Identity())
    return with_compressor(part, every) if plain is None else plain


def make_sparse(part: Any, density: float) -> Any:
    """The part with Top-k in place of every compressor; None if the part refuses it, or has no compressor."""
    topk = TopK(density=density)
    made = with_compressor(part, topk) if is_leaf(part) else replace_leaves(part, GatherMean(topk))
    return made if made is not None and topk in list(parts_of(made)) else None
