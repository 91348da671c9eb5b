"""Assign a composition to each parameter: one for all, or by name patterns. Vectors and small layers are sent dense."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from ..aggregators import Dense
from ..core import Aggregator, CompositionError, Compressor, TensorSpec
from . import DENSE_BELOW, as_aggregator, parse, without_compression

CompositionSpec: TypeAlias = str | Aggregator[Any] | Compressor  # a composition as users pass it


def assign_composition(
    layers: Sequence[TensorSpec],
    composition: CompositionSpec | Mapping[str, CompositionSpec],
    dense_below: int = DENSE_BELOW,
    caller: str = "attach",
    option: str = "composition",
) -> dict[str, Aggregator[Any]]:
    """Return an aggregator for each layer.

    Patterns are those of file names ("*.weight"); the first that matches counts, and layers that match none are sent
    dense. So are vectors (biases, norms) and layers with fewer than `dense_below` elements, unless a pattern is their
    full name; under gossip they are averaged exactly among the same neighbors.

    Args:
        layers: The specs of the parameters.
        composition: A composition text, a part, or a mapping from name patterns to these.
        dense_below: Number of elements below which a layer is sent dense.
        caller: The function that errors name.
        option: The argument that errors name.

    Raises:
        CompositionError: A composition is not valid, or a pattern matches no layer or is hidden by earlier patterns.
    """
    patterns = dict(composition) if isinstance(composition, Mapping) else {"*": composition}
    if not patterns:
        raise CompositionError(
            f"{caller}: {option} is an empty mapping; give at least one name pattern, such as "
            "{'*': 'ef(topk(density=0.01))'}"
        )
    names = [layer.name for layer in layers]
    rules = {pattern: _parse(pattern, value, f"{caller}: {option}") for pattern, value in patterns.items()}
    _check_patterns(list(rules), names, caller)
    return {layer.name: _select(layer, rules, dense_below) for layer in layers}


def _parse(pattern: Any, value: Any, where: str) -> Aggregator[Any]:
    if not isinstance(pattern, str):
        raise CompositionError(f"{where}: a name pattern must be a text such as '*.weight', got {pattern!r}")
    return parse(value) if isinstance(value, str) else as_aggregator(value, f"{where}={value!r}")


def _check_patterns(patterns: Sequence[str], names: Sequence[str], caller: str) -> None:
    """Require a layer for each pattern: one that it matches before any other pattern, or one with this full name."""
    free = [name for name in names if name not in patterns]
    for pattern in patterns:
        matched = [name for name in names if fnmatchcase(name, pattern)]
        if not matched:
            raise CompositionError(f"{caller}: no parameter name matches {pattern!r}; there are {_shorten(names)}")
        if pattern in names:
            continue
        if not any(name in free for name in matched):
            earlier = next(p for p in patterns if any(fnmatchcase(name, p) or name == p for name in matched))
            raise CompositionError(
                f"{caller}: pattern {pattern!r} is never reached: {earlier!r} and other patterns before it match "
                f"all of its parameters ({_shorten(matched)}); the first pattern that matches counts, so put "
                f"{pattern!r} first"
            )
        free = [name for name in free if name not in matched]


def _select(layer: TensorSpec, rules: Mapping[str, Aggregator[Any]], dense_below: int) -> Aggregator[Any]:
    if layer.name in rules:
        return rules[layer.name]
    rule = next((rule for pattern, rule in rules.items() if fnmatchcase(layer.name, pattern)), Dense())
    return without_compression(rule) if len(layer.shape) < 2 or layer.numel < dense_below else rule


def _shorten(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f", ... ({len(names)} in all)" if len(names) > 6 else "")
