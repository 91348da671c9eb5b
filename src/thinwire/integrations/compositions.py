"""Which composition each layer travels through, in words: for reports and for the repr of handles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from ..catalog import aggregator_of, parse, part_text, uncompressed
from ..core import Aggregator, TensorSpec
from .complex_layers import AS_PAIRS

MAX_GROUPS = 8  # of layers with one composition, in a report
MAX_NAMED = 3  # of these, in a repr
VECTOR = "vector (bias, norm)"
NO_PATTERN = "no pattern matched"


@dataclass(frozen=True)
class Compositions:
    """Composition texts by layer, why those layers that fell back to an exact exchange did so, and complex layers."""

    texts: Mapping[str, str]
    fallbacks: Mapping[str, str]
    complex_layers: Collection[str] = ()

    def mark(self, layer: str) -> str:
        """What a table says beside a layer that fell back, or is complex."""
        how = "dense" if self.texts.get(layer, "dense()") == "dense()" else "uncompressed"
        reason = f"{how}: {self.fallbacks[layer]}" if layer in self.fallbacks else ""
        return "; ".join(filter(None, (reason, AS_PAIRS if layer in self.complex_layers else "")))

    def lines(self) -> list[str]:
        """One for each composition, with the number of layers; reasons of those that fell back."""
        groups = self._groups()
        lines = [f"{_layers(len(names)):>{_width(groups)}}  {text}" + self._why(names) for text, names in groups]
        rest = len(lines) - MAX_GROUPS
        return lines if rest <= 0 else [*lines[:MAX_GROUPS], f"... and {rest} more compositions"]

    def summary(self) -> str:
        """In one line."""
        groups = self._groups()
        if len(groups) == 1:
            return groups[0][0]
        named = [f"{text} for {_layers(len(names))}" for text, names in groups[:MAX_NAMED]]
        rest = len(groups) - MAX_NAMED
        return ", ".join(named) + (f", {rest} more" if rest > 0 else "")

    def _groups(self) -> list[tuple[str, list[str]]]:
        """Layers by text; what fell back comes last."""
        groups: dict[str, list[str]] = {}
        for name, text in self.texts.items():
            groups.setdefault(text, []).append(name)
        return sorted(groups.items(), key=lambda group: all(name in self.fallbacks for name in group[1]))

    def _why(self, names: Sequence[str]) -> str:
        reasons = Counter(self.fallbacks[name] for name in names if name in self.fallbacks)
        reasons += Counter(AS_PAIRS for name in names if name in self.complex_layers)
        told = ", ".join(f"{count} × {reason}" for reason, count in reasons.items())
        return f": {told}" if told else ""


def _layers(count: int) -> str:
    return f"{count} layer{'' if count == 1 else 's'}"


def _width(groups: Sequence[tuple[str, list[str]]]) -> int:
    return max((len(_layers(len(names))) for _, names in groups), default=0)


def describe_compositions(
    rules: Mapping[str, Aggregator[Any]], fallbacks: Mapping[str, str], complex_layers: Collection[str] = ()
) -> Compositions:
    texts: dict[int, str] = {}  # one rule serves many layers
    for rule in rules.values():
        if id(rule) not in texts:
            texts[id(rule)] = part_text(rule)
    return Compositions({name: texts[id(rule)] for name, rule in rules.items()}, fallbacks, complex_layers)


def find_fallbacks(layers: Sequence[TensorSpec], wanted: Any, dense_below: int) -> dict[str, str]:
    """Why layers travel uncompressed though the composition, or one of its patterns, is another. See `patterns`.

    wanted: a text, a part, or a mapping of name patterns to those.
    """
    patterns = dict(wanted) if isinstance(wanted, Mapping) else {"*": wanted}
    reasons: dict[str, str] = {}
    for layer in layers:
        if layer.name in patterns:
            continue
        pattern = next((pattern for pattern in patterns if fnmatchcase(layer.name, pattern)), None)
        reason = (
            NO_PATTERN
            if pattern is None
            else None
            if _is_exact(patterns[pattern])
            else dense_reason(layer, dense_below)
        )
        if reason is not None:
            reasons[layer.name] = reason
    return reasons


def dense_reason(layer: TensorSpec, dense_below: int) -> str | None:
    """Why a layer of this form is not worth compressing; None if it is."""
    if len(layer.shape) < 2:
        return VECTOR
    return f"fewer than dense_below={dense_below} elements" if layer.numel < dense_below else None


def _is_exact(wanted: Any) -> bool:
    part = parse(wanted) if isinstance(wanted, str) else aggregator_of(wanted, "composition")
    return bool(uncompressed(part) == part)
