"""Which composition each parameter gets: one for all, or by name patterns; what is too small to gain travels dense."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from ..aggregators import Dense
from ..catalog import SMALL, parse, uncompressed
from ..core import Aggregator, CompositionError, TensorSpec

Wanted: TypeAlias = str | Aggregator[Any]


def assigned(
    layers: Sequence[TensorSpec], wanted: Wanted | Mapping[str, Wanted], small: int = SMALL
) -> dict[str, Aggregator[Any]]:
    """An aggregator for every layer.

    Patterns are those of file names ("*.weight"), the first that matches counts; layers that none matches travel dense.
    Vectors (biases, norms) and layers of fewer than `small` elements travel dense, too, unless named in full; under
    gossip that is among the same partners.
    """
    patterns = dict(wanted) if isinstance(wanted, Mapping) else {"*": wanted}
    rules = {pattern: parse(value) if isinstance(value, str) else value for pattern, value in patterns.items()}
    names = [layer.name for layer in layers]
    for pattern in rules:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise CompositionError(f"attach: no parameter is called like {pattern!r}; there are {_some(names)}")
    return {layer.name: _rule(layer, rules, small) for layer in layers}


def _rule(layer: TensorSpec, rules: Mapping[str, Aggregator[Any]], small: int) -> Aggregator[Any]:
    if layer.name in rules:
        return rules[layer.name]
    rule = next((rule for pattern, rule in rules.items() if fnmatchcase(layer.name, pattern)), Dense())
    return uncompressed(rule) if len(layer.shape) < 2 or layer.numel < small else rule


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f", ... ({len(names)} in all)" if len(names) > 6 else "")
