"""Which composition each parameter gets: one for all, or by name patterns; what is too small to gain travels dense."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from ..aggregators import Dense
from ..core import Aggregator, CompositionError, Compressor, TensorSpec
from . import SMALL, aggregator_of, parse, uncompressed

Wanted: TypeAlias = str | Aggregator[Any] | Compressor


def assigned(
    layers: Sequence[TensorSpec],
    wanted: Wanted | Mapping[str, Wanted],
    small: int = SMALL,
    caller: str = "attach",
    option: str = "composition",
) -> dict[str, Aggregator[Any]]:
    """An aggregator for every layer.

    Patterns are those of file names ("*.weight"), the first that matches counts; layers that none matches travel dense.
    Vectors (biases, norms) and layers of fewer than `small` elements travel dense, too, unless named in full; under
    gossip that is among the same partners. caller, option: what errors call the function and its argument.
    """
    patterns = dict(wanted) if isinstance(wanted, Mapping) else {"*": wanted}
    if not patterns:
        raise CompositionError(
            f"{caller}: {option} is an empty mapping; give at least one name pattern, such as "
            "{'*': 'ef(topk(density=0.01))'}"
        )
    names = [layer.name for layer in layers]
    rules = {pattern: _composition(pattern, value, f"{caller}: {option}") for pattern, value in patterns.items()}
    _check_patterns(list(rules), names, caller)
    return {layer.name: _rule(layer, rules, small) for layer in layers}


def _composition(pattern: Any, value: Any, where: str) -> Aggregator[Any]:
    if not isinstance(pattern, str):
        raise CompositionError(f"{where}: a name pattern is a text such as '*.weight', got {pattern!r}")
    return parse(value) if isinstance(value, str) else aggregator_of(value, f"{where}={value!r}")


def _check_patterns(patterns: Sequence[str], names: Sequence[str], caller: str) -> None:
    """Every pattern must have a layer: one that it matches and no earlier pattern takes, or whose full name it is."""
    free = [name for name in names if name not in patterns]
    for pattern in patterns:
        matched = [name for name in names if fnmatchcase(name, pattern)]
        if not matched:
            raise CompositionError(f"{caller}: no parameter is called like {pattern!r}; there are {_some(names)}")
        if pattern in names:
            continue
        if not any(name in free for name in matched):
            earlier = next(p for p in patterns if any(fnmatchcase(name, p) or name == p for name in matched))
            raise CompositionError(
                f"{caller}: pattern {pattern!r} is never reached: {earlier!r} and other patterns before it take all of "
                f"its parameters ({_some(matched)}); the first pattern that matches counts, so put {pattern!r} before"
            )
        free = [name for name in free if name not in matched]


def _rule(layer: TensorSpec, rules: Mapping[str, Aggregator[Any]], small: int) -> Aggregator[Any]:
    if layer.name in rules:
        return rules[layer.name]
    rule = next((rule for pattern, rule in rules.items() if fnmatchcase(layer.name, pattern)), Dense())
    return uncompressed(rule) if len(layer.shape) < 2 or layer.numel < small else rule


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f", ... ({len(names)} in all)" if len(names) > 6 else "")
