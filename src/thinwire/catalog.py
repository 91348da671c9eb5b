"""Every part by name, and compositions as text: `ef(topk(density=0.01, values="bf16"))`.

A composition is a Python-like expression of calls, numbers and strings; it is read, never evaluated. A bare compressor
means its default aggregator: payloads that add up are added, others gathered. `to_text` writes the shortest text that
`parse` reads back to the same object.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, Union, get_args, get_origin, get_type_hints

from . import aggregators, compressors, controllers, feedback, topologies
from .core import Aggregator, CompositionError, Compressor, Controller, IncompatibleParts, Topology, adds_up, mixes

COMPRESSORS: dict[str, type[Any]] = {
    "identity": compressors.Identity,
    "cast": compressors.Cast,
    "randomk": compressors.RandomK,
    "topk": compressors.TopK,
    "threshold": compressors.Threshold,
    "adaptive": compressors.AdaptiveThreshold,
    "level_search": compressors.LevelSearch,
    "square": compressors.SquareStochastic,
    "impk": compressors.ImpK,
    "greedy": compressors.Greedy,
    "stochastic": compressors.Stochastic,
    "qsgd": compressors.QSGD,
    "maxmin": compressors.MaxMin,
    "uniform": compressors.Uniform,
    "ternary": compressors.Ternary,
    "natural": compressors.Natural,
    "power2": compressors.PowerOfTwo,
    "sign": compressors.ScaledSign,
    "svd": compressors.TruncatedSVD,
    "rsvd": compressors.RandomisedSVD,
    "projection": compressors.RandomProjection,
    "st_hosvd": compressors.STHOSVD,
    "hosvd": compressors.HOSVD,
    "tt": compressors.TensorTrain,
    "cp": compressors.CP,
}
AGGREGATORS: dict[str, type[Any]] = {
    "dense": aggregators.Dense,
    "gather": aggregators.GatherMean,
    "sum": aggregators.SumMean,
    "two_hop": aggregators.TwoHop,
    "vote": aggregators.Vote,
    "powersgd": aggregators.PowerSGD,
    "sketch": aggregators.SketchSum,
    "union": aggregators.UnionSum,
    "ring_sum": aggregators.RingSum,
    "server": aggregators.Server,
    "gossip": aggregators.Gossip,
    "choco": aggregators.Choco,
    "scheduled": aggregators.Scheduled,
    "switch": aggregators.Switch,
    "adapt": aggregators.Adapt,
    "whole": aggregators.Whole,
}
MEMORIES: dict[str, type[Any]] = {
    "ef": feedback.ErrorFeedback,
    "ef21": feedback.EF21,
    "scam": feedback.SCAM,
    "dgc": feedback.DGC,
}
TOPOLOGIES: dict[str, type[Any]] = {
    "complete": topologies.Complete,
    "ring": topologies.Ring,
    "torus": topologies.Torus,
    "exponential": topologies.Exponential,
    "hypercube": topologies.Hypercube,
    "star": topologies.Star,
    "rotating": topologies.Rotating,
    "matrix": topologies.Matrix,
}
CONTROLLERS: dict[str, type[Any]] = {
    "fixed": controllers.Fixed,
    "lgreco": controllers.LGreCo,
    "accordion": controllers.Accordion,
    "kmeans": controllers.KMeans,
    "by_size": controllers.BySize,
}
PARTS = COMPRESSORS | AGGREGATORS | MEMORIES | TOPOLOGIES | CONTROLLERS
SMALL = 1024  # elements: below this, positions, scales and factors cost more than they save
_NAMES = {cls: name for name, cls in PARTS.items()}


def default_aggregator(compressor: Compressor) -> Aggregator[Any]:
    """Payloads that can be added on the wire are, because the cost of that does not grow with the ranks."""
    return aggregators.SumMean(compressor) if adds_up(compressor) else aggregators.GatherMean(compressor)


def uncompressed(aggregator: Aggregator[Any]) -> Aggregator[Any]:
    """The exact form of an exchange, for what is too small to compress: dense, under gossip among the same partners."""
    topology = mixes(aggregator)
    return aggregators.Dense() if topology is None else aggregators.Gossip(compressors.Identity(), topology)


def parse(text: str) -> Aggregator[Any]:
    """The aggregator a composition text describes; errors show the text with a mark under the place."""
    part = Reader(text).part()
    if isinstance(part, Topology):
        raise CompositionError(f"{text!r} says with whom, but not what; write for example gossip(identity(), {text})")
    if is_controller(part):
        raise CompositionError(
            f"{text!r} chooses, but from what? Write for example adapt(topk(density=0.01), by={text})"
        )
    return part if isinstance(part, Aggregator) else default_aggregator(part)


def is_controller(part: Any) -> bool:
    return type(part) in CONTROLLERS.values()


def parse_compressor(text: str) -> Compressor:
    part = Reader(text).part()
    if not isinstance(part, Compressor):
        raise CompositionError(f"{text!r} is {_kind(part)}; a compressor is needed here: {', '.join(COMPRESSORS)}")
    return part


def _kind(part: Any) -> str:
    return "a topology" if isinstance(part, Topology) else "a controller" if is_controller(part) else "an aggregator"


def to_text(part: Any) -> str:
    """The shortest text for a part; a default aggregator is left out."""
    cls = type(part)
    if cls not in _NAMES:
        raise CompositionError(
            f"{cls.__name__} is not in the catalog, so it has no text; listed are {', '.join(PARTS)}"
        )
    if cls in (aggregators.GatherMean, aggregators.SumMean) and default_aggregator(part.compressor) == part:
        return to_text(part.compressor)
    arguments = [_argument(field, getattr(part, field.name)) for field in settings(type(part))]
    return f"{_NAMES[cls]}({', '.join(a for a in arguments if a)})"


def settings(cls: type[Any]) -> list[Field[Any]]:
    """The fields a text may name; those that are not shown (`repr=False`) hold what is given while running."""
    return [field for field in fields(cls) if field.repr]


def _argument(field: Field[Any], value: Any) -> str:
    if (field.default_factory() if field.default_factory is not MISSING else field.default) == value:
        return ""
    if isinstance(value, tuple) and field.default is MISSING:  # parts; a tuple of numbers is a setting like others
        return ", ".join(map(to_text, value))
    if isinstance(value, Aggregator | Topology) or (isinstance(value, Compressor) and field.default is MISSING):
        return to_text(value)
    if isinstance(value, compressors.Cast):
        return f'{field.name}="{value.dtype}"'
    return f"{field.name}={to_text(value) if isinstance(value, Compressor) or is_controller(value) else literal(value)}"


def literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value).lower() if isinstance(value, bool) else repr(value)


class Reader:
    """Walks the syntax tree of one text; every complaint carries the place. `parts` is the table it knows."""

    parts: Mapping[str, type[Any]] = PARTS

    def __init__(self, text: str) -> None:
        self.text = text

    def part(self) -> Any:
        try:
            tree = ast.parse(self.text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            column = (getattr(error, "offset", None) or 1) - 1
            raise self._error(
                column, 'this is not a composition; write for example ef(topk(density=0.01, values="bf16"))'
            ) from None
        try:
            return self._part(tree)
        except RecursionError:
            raise self._error(0, "too many parts inside one another") from None

    def _error(self, place: ast.AST | int, message: str) -> CompositionError:
        text = self.text.strip()
        column = place if isinstance(place, int) else _column(text, place)
        return CompositionError(f"{message}\n  {text}\n  {' ' * min(column, len(text))}^")

    def _part(self, node: ast.expr) -> Any:
        call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
        if not isinstance(call.func, ast.Name):
            raise self._error(node, f"a part is needed here: {', '.join(self.parts)}")
        name = call.func.id
        if name not in self.parts:
            raise self._error(call.func, f"no part is called {name!r}; there are {', '.join(self.parts)}")
        arguments = self._arguments(call, self.parts[name], name)
        try:
            return self.parts[name](**arguments)
        except (CompositionError, IncompatibleParts) as error:
            raise type(error)(str(self._error(node, str(error)))) from None

    def _arguments(self, call: ast.Call, cls: type[Any], name: str) -> dict[str, Any]:
        hints, slots = get_type_hints(cls), {field.name: field for field in settings(cls)}
        required = [slot for slot in slots.values() if slot.default is MISSING and slot.default_factory is MISSING]
        values: dict[str, Any] = {}
        if required and get_origin(hints[required[0].name]) is tuple:
            values[required[0].name] = tuple(self._inner(node, Aggregator) for node in call.args)
        else:
            if len(call.args) > len(required):
                place = call.args[len(required)]
                wants = ", ".join(slots) or "no settings"
                raise self._error(place, f"{name} takes its settings by name ({wants})")
            for slot, node in zip(required, call.args, strict=False):
                values[slot.name] = self._inner(node, hints[slot.name])
        for keyword in call.keywords:
            if keyword.arg not in slots or keyword.arg in values:
                raise self._error(
                    keyword.value, f"{name} has no setting {keyword.arg!r} here; it has {', '.join(slots) or 'none'}"
                )
            values[keyword.arg] = self._inner(keyword.value, hints[keyword.arg])
        missing = [slot.name for slot in required if slot.name not in values]
        if missing:
            example = "topk(density=0.01)" + (", ring()" if "topology" in slots else "")
            raise self._error(call.func, f"{name} needs its {missing[0]}, for example {name}({example})")
        return values

    def _inner(self, node: ast.expr, wanted: Any) -> Any:
        """What stands at `node`, as the type that the setting has."""
        kinds = set(kinds_of(wanted))
        if Topology in kinds:
            topology = self._part(node)
            if not isinstance(topology, Topology):
                raise self._error(node, f"a topology is needed here: {', '.join(TOPOLOGIES)}")
            return topology
        if Controller in kinds:
            return self._controller(node)
        if kinds & {Aggregator, Compressor}:
            return self._inner_part(node, Aggregator in kinds)
        try:
            value = ast.literal_eval(ast.Name("None") if _is_word(node, "none") else _lowered(node))
        except ValueError:
            value = node
        if float in kinds and type(value) is int:
            value = float(value)
        if type(value) not in kinds:
            names = " or ".join(sorted("none" if k is type(None) else k.__name__ for k in kinds))
            raise self._error(node, f"{names} is needed here")
        return value

    def _controller(self, node: ast.expr) -> Any:
        controller = self._part(node)
        if not is_controller(controller):
            raise self._error(node, f"a controller is needed here: {', '.join(CONTROLLERS)}")
        return controller

    def _inner_part(self, node: ast.expr, aggregator: bool) -> Any:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and not aggregator:
            try:
                return compressors.Cast(node.value)
            except CompositionError as error:
                raise self._error(node, str(error)) from None
        part = self._part(node)
        if aggregator and (isinstance(part, Topology) or is_controller(part)):
            raise self._error(node, f"an aggregator or a compressor is needed here: {', '.join(AGGREGATORS)}")
        if aggregator:
            return part if isinstance(part, Aggregator) else default_aggregator(part)
        if not isinstance(part, Compressor):
            raise self._error(node, f"a compressor is needed here: {', '.join(COMPRESSORS)}")
        return part


def kinds_of(wanted: Any) -> Iterator[Any]:
    if get_origin(wanted) in (Union, types.UnionType):
        for inner in get_args(wanted):
            yield from kinds_of(inner)
    else:
        yield get_origin(wanted) or wanted


def _is_word(node: ast.expr, word: str) -> bool:
    return isinstance(node, ast.Name) and node.id.lower() == word


def _lowered(node: ast.expr) -> ast.expr:
    """true and false as well as True and False."""
    for word, value in (("true", True), ("false", False)):
        if _is_word(node, word):
            return ast.Constant(value)
    return node


def _column(text: str, node: ast.AST) -> int:
    """ast counts bytes; people count characters."""
    return len(text.encode()[: getattr(node, "col_offset", 0)].decode(errors="ignore"))
