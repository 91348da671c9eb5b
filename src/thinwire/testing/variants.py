"""Compositions made of a part to see what it does by itself: with exact or with sparse parts inside."""

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
    """Whether it is around no aggregator."""
    return not any(isinstance(inside, Aggregator) for inside in list(parts_of(part))[1:])


def inside_has(part: Any, capability: Capability) -> bool:
    return any(has(inside, capability) for inside in list(parts_of(part))[1:])


def around(part: Any, leaf: Aggregator[Any]) -> Any:
    """The same memories and menus around `leaf` everywhere; None if they do not take it."""

    def change(inside: Any) -> Any:
        return leaf if inside is not part and isinstance(inside, Aggregator) and is_leaf(inside) else None

    return _or_none(part, change)


def encoding(part: Any, compressor: Compressor) -> Any:
    """The same aggregator with this compressor; None if it does not take it."""
    return _or_none(part, lambda inside: compressor if inside is not part and isinstance(inside, Compressor) else None)


def _or_none(part: Any, change: Any) -> Any:
    try:
        return rebuild(part, change)
    except (CompositionError, IncompatibleParts):
        return None


def made_exact(part: Any) -> Any:
    """The part with nothing inside that loses anything; None if there is no such."""
    every = TopK(density=1.0)
    if not is_leaf(part):
        return around(part, GatherMean(every))
    plain = encoding(part, Identity())
    return encoding(part, every) if plain is None else plain


def made_sparse(part: Any, density: float) -> Any:
    """The part with Top-k inside, in place of every compressor; None if it does not take it, or has none."""
    topk = TopK(density=density)
    made = encoding(part, topk) if is_leaf(part) else around(part, GatherMean(topk))
    return made if made is not None and topk in list(parts_of(made)) else None
