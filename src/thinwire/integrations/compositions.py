"""The compositions of layers as text, for reports and for the repr of handles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from ..catalog import as_aggregator, parse, part_text, without_compression
from ..core import Aggregator, TensorSpec
from .complex_layers import AS_PAIRS

MAX_GROUPS = 8  # of layers with one composition, in a report
MAX_NAMED = 3  # of these, in a repr
VECTOR = "vector (bias, norm)"
NO_PATTERN = "no pattern matched"


@dataclass(frozen=True)
class Compositions:
    """Composition texts by layer, the reasons of layers that fell back to dense, and the names of complex layers."""

    texts: Mapping[str, str]
    fallbacks: Mapping[str, str]
    complex_layers: Collection[str] = ()

    def remark(self, layer: str) -> str:
        """Return the remark on a layer that fell back or is complex; else ""."""
        how = "dense" if self.texts.get(layer, "dense()") == "dense()" else "without_compression"
        reason = f"{how}: {self.fallbacks[layer]}" if layer in self.fallbacks else ""
        return "; ".join(filter(None, (reason, AS_PAIRS if layer in self.complex_layers else "")))

    def lines(self) -> list[str]:
        """Return a line for each composition: number of layers, text, reasons of those that fell back."""
        groups = self._groups()
        lines = [
            f"{_count_layers(len(names)):>{_width(groups)}}  {text}" + self._reasons(names) for text, names in groups
        ]
        rest = len(lines) - MAX_GROUPS
        return lines if rest <= 0 else [*lines[:MAX_GROUPS], f"... and {rest} more compositions"]

    def summary(self) -> str:
        """Return all compositions in one line."""
        groups = self._groups()
        if len(groups) == 1:
            return groups[0][0]
        named = [f"{text} for {_count_layers(len(names))}" for text, names in groups[:MAX_NAMED]]
        rest = len(groups) - MAX_NAMED
        return ", ".join(named) + (f", {rest} more" if rest > 0 else "")

    def _groups(self) -> list[tuple[str, list[str]]]:
        """Layers by text; those that fell back come last."""
        groups: dict[str, list[str]] = {}
        for name, text in self.texts.items():
            groups.setdefault(text, []).append(name)
        return sorted(groups.items(), key=lambda group: all(name in self.fallbacks for name in group[1]))

    def _reasons(self, names: Sequence[str]) -> str:
        reasons = Counter(self.fallbacks[name] for name in names if name in self.fallbacks)
        reasons += Counter(AS_PAIRS for name in names if name in self.complex_layers)
        text = ", ".join(f"{count} × {reason}" for reason, count in reasons.items())
        return f": {text}" if text else ""


def _count_layers(count: int) -> str:
    return f"{count} layer{'' if count == 1 else 's'}"


def _width(groups: Sequence[tuple[str, list[str]]]) -> int:
    return max((len(_count_layers(len(names))) for _, names in groups), default=0)


def describe_compositions(
    rules: Mapping[str, Aggregator[Any]], fallbacks: Mapping[str, str], complex_layers: Collection[str] = ()
) -> Compositions:
    texts: dict[int, str] = {}  # one aggregator serves many layers
    for rule in rules.values():
        if id(rule) not in texts:
            texts[id(rule)] = part_text(rule)
    return Compositions({name: texts[id(rule)] for name, rule in rules.items()}, fallbacks, complex_layers)


def find_fallbacks(layers: Sequence[TensorSpec], composition: Any, dense_below: int) -> dict[str, str]:
    """Return the reasons why layers are sent uncompressed though the composition compresses; see `patterns`.

    composition: a text, a part, or a mapping from name patterns to these.
    """
    patterns = dict(composition) if isinstance(composition, Mapping) else {"*": composition}
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
    """Return the reason why a layer of this shape is sent dense; None if it is compressed."""
    if len(layer.shape) < 2:
        return VECTOR
    return f"fewer than dense_below={dense_below} elements" if layer.numel < dense_below else None


def _is_exact(composition: Any) -> bool:
    part = parse(composition) if isinstance(composition, str) else as_aggregator(composition, "composition")
    return bool(without_compression(part) == part)
