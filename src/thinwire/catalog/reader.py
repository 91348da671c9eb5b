"""Parser of composition texts: Python-like expressions of calls, numbers and strings, which are never evaluated."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_origin, get_type_hints

from .. import compressors, renamed
from ..core import (
    Aggregator,
    CompositionError,
    Compressor,
    Controller,
    IncompatibleParts,
    Topology,
    closest,
    did_you_mean,
)
from .kinds import member_types, required_settings, settings_of
from .registry import AGGREGATORS, COMPRESSORS, CONTROLLERS, KINDS, REGISTRY, TOPOLOGIES
from .tables import default_aggregator, is_controller

QUOTES = "'\""
COMPOSED = ("compressors", "aggregators", "memories")  # kinds of the outermost part of a composition


def parse(text: str) -> Aggregator[Any]:
    """Read a composition text.

    Args:
        text: a composition such as "ef(topk(density=0.01))"; docs/parts.md lists all parts.

    Returns:
        The aggregator that the text describes. A bare compressor gets its default aggregator.

    Raises:
        CompositionError: the text is no composition, names an unknown part or setting, or a setting has a wrong value.
            The error shows the text with a mark under the place.
        IncompatibleParts: a part cannot stand inside the one around it.
    """
    return as_aggregator(Reader(text).part(COMPOSED), repr(text))


def as_aggregator(part: Any, text: str) -> Aggregator[Any]:
    """Return the part if it is an aggregator, or the default aggregator of a compressor.

    Args:
        part: an aggregator or a compressor.
        text: how errors name it.

    Raises:
        CompositionError: it is neither.
    """
    if isinstance(part, type):
        raise CompositionError(f"{text} is a class; expected an object, {part.__name__}(...), or a text")
    if isinstance(part, Topology):
        example = f"gossip(identity(), {text.strip(QUOTES)})"
        raise CompositionError(f"{text} is a topology; expected an aggregator, for example {example}")
    if is_controller(part):
        example = f"adapt(topk(density=0.01), controller={text.strip(QUOTES)})"
        raise CompositionError(f"{text} is a controller; expected an aggregator, for example {example}")
    if isinstance(part, Aggregator):
        return part
    if isinstance(part, Compressor):
        return default_aggregator(part)
    raise CompositionError(
        f"{text} is no part; expected an aggregator or a compressor, or a text such as 'ef(topk(density=0.01))'"
    )


def parse_compressor(text: str) -> Compressor:
    """Read the text of a compressor, such as "topk(density=0.01)".

    Raises:
        CompositionError: the text describes no compressor.
    """
    part = Reader(text).part(("compressors",))
    if not isinstance(part, Compressor):
        raise CompositionError(f"{text!r} is {kind_of(part)}; expected a compressor: {', '.join(COMPRESSORS)}")
    return part


def kind_of(part: Any) -> str:
    """What a part is, for errors: "a topology", "a compressor"."""
    kinds = {Topology: "a topology", Compressor: "a compressor", Controller: "a controller"}
    return next((kind for protocol, kind in kinds.items() if isinstance(part, protocol)), "an aggregator")


class Reader:
    """Builds the part that one text describes, from its syntax tree. `kinds` are the tables of names it knows."""

    kinds: Mapping[str, Mapping[str, type[Any]]] = KINDS

    def __init__(self, text: str) -> None:
        self.text = text

    def part(self, kinds: Sequence[str] = ()) -> Any:
        """Return the part that the text describes; an error lists the names of `kinds`, or of all."""
        try:
            tree = ast.parse(self.text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            column = (getattr(error, "offset", None) or 1) - 1
            raise self._error(
                column, 'this is not a composition; an example is ef(topk(density=0.01, values="bf16"))'
            ) from None
        try:
            return self._part(tree, kinds)
        except RecursionError:
            raise self._error(0, "the parts are nested too deeply") from None

    def _error(self, place: ast.AST | int, message: str) -> CompositionError:
        text = self.text.strip()
        column = place if isinstance(place, int) else _column(text, place)
        return CompositionError(f"{message}\n  {text}\n  {' ' * min(column, len(text))}^")

    def _wrong_kind(self, node: ast.expr, part: Any, expected: str, names: Iterable[str]) -> CompositionError:
        return self._error(node, f"{ast.unparse(node)!r} is {kind_of(part)}; expected {expected}: {', '.join(names)}")

    def _part(self, node: ast.expr, kinds: Sequence[str] = ()) -> Any:
        call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
        if not isinstance(call.func, ast.Name):
            raise self._error(node, f"expected a part, got {ast.unparse(node)!r}; {self._names(kinds)}")
        name = call.func.id
        cls = self._class(name, kinds)
        if cls is None:
            now = renamed.hint(renamed.PARTS, name) or f"; {self._suggestion(name, kinds)}"
            raise self._error(call.func, f"no part is called {name!r}{now}")
        arguments = self._arguments(call, cls, name)
        try:
            return cls(**arguments)
        except (CompositionError, IncompatibleParts) as error:
            raise type(error)(str(self._error(node, str(error)))) from None

    def _class(self, name: str, kinds: Sequence[str]) -> type[Any] | None:
        """The class of that name: first of the kinds that fit here, then of all others, then of other packages."""
        tables = [self.kinds[kind] for kind in (*kinds, *self.kinds)]
        found = next((table[name] for table in tables if name in table), None)
        if found is None and (registration := REGISTRY.find(name)) is not None:
            found = registration.cls
        return found

    def _suggestion(self, name: str, kinds: Sequence[str]) -> str:
        """The closest name and all names of its kind; or all names that fit."""
        REGISTRY.load_all()
        wanted = [part for kind in kinds or self.kinds for part in self.kinds[kind]]
        meant = closest(name, wanted)
        if meant is None:
            return self._names(kinds)
        return f"did you mean {meant!r}? {self._names([k for k, table in self.kinds.items() if meant in table])}"

    def _names(self, kinds: Sequence[str]) -> str:
        return "; ".join(f"{kind} are {', '.join(self.kinds[kind])}" for kind in kinds or self.kinds)

    def _arguments(self, call: ast.Call, cls: type[Any], name: str) -> dict[str, Any]:
        hints, slots = get_type_hints(cls), {field.name: field for field in settings_of(cls)}
        needed = required_settings(cls)
        values: dict[str, Any] = {}
        if needed and get_origin(hints[needed[0].name]) is tuple:
            values[needed[0].name] = tuple(self._inner(node, Aggregator) for node in call.args)
        else:
            if len(call.args) > len(needed):
                place = call.args[len(needed)]
                wants = ", ".join(slots) or "no settings"
                raise self._error(place, f"{name} takes its settings as keyword arguments ({wants})")
            for slot, node in zip(needed, call.args, strict=False):
                values[slot.name] = self._inner(node, hints[slot.name])
        for keyword in call.keywords:
            if keyword.arg not in slots or keyword.arg in values:
                meant = "" if keyword.arg in values or keyword.arg is None else did_you_mean(keyword.arg, slots)
                meant = renamed.hint(renamed.SETTINGS, f"{name}.{keyword.arg}") or meant
                has = ", ".join(slots) or "none"
                raise self._error(keyword.value, f"{name} has no setting {keyword.arg!r} here; it has {has}{meant}")
            values[keyword.arg] = self._inner(keyword.value, hints[keyword.arg])
        missing = [slot.name for slot in needed if slot.name not in values]
        if missing:
            example = "topk(density=0.01)" + (", ring()" if "topology" in slots else "")
            raise self._error(call.func, f"{name} needs its {missing[0]}, for example {name}({example})")
        return values

    def _inner(self, node: ast.expr, wanted: Any) -> Any:
        """The value at `node`, as the type of the setting."""
        kinds = set(member_types(wanted))
        if Topology in kinds:
            topology = self._part(node, ("topologies",))
            if not isinstance(topology, Topology):
                raise self._wrong_kind(node, topology, "a topology", TOPOLOGIES)
            return topology
        if Controller in kinds:
            return self._controller(node)
        if kinds & {Aggregator, Compressor}:
            return self._inner_part(node, Aggregator in kinds)
        try:
            value = ast.literal_eval(ast.Name("None") if _is_word(node, "none") else _replace_constants(node))
        except ValueError:
            value = node
        if float in kinds and type(value) is int:
            value = float(value)
        if type(value) not in kinds:
            names = " or ".join(sorted("none" if k is type(None) else k.__name__ for k in kinds))
            raise self._error(node, f"expected {names}, got {ast.unparse(node)}")
        return value

    def _controller(self, node: ast.expr) -> Any:
        controller = self._part(node, ("controllers",))
        if not is_controller(controller):
            raise self._wrong_kind(node, controller, "a controller", CONTROLLERS)
        return controller

    def _inner_part(self, node: ast.expr, aggregator: bool) -> Any:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and not aggregator:
            try:
                return compressors.Cast(node.value)
            except CompositionError as error:
                raise self._error(node, str(error)) from None
        part = self._part(node, COMPOSED if aggregator else ("compressors",))
        if aggregator and (isinstance(part, Topology) or is_controller(part)):
            raise self._wrong_kind(node, part, "an aggregator or a compressor", AGGREGATORS)
        if aggregator:
            return part if isinstance(part, Aggregator) else default_aggregator(part)
        if not isinstance(part, Compressor):
            raise self._wrong_kind(node, part, "a compressor", COMPRESSORS)
        return part


def _is_word(node: ast.expr, word: str) -> bool:
    return isinstance(node, ast.Name) and node.id.lower() == word


def _replace_constants(node: ast.expr) -> ast.expr:
    """A node with the constants true and false, as well as True and False."""
    for word, value in (("true", True), ("false", False)):
        if _is_word(node, word):
            return ast.Constant(value)
    return node


def _column(text: str, node: ast.AST) -> int:
    """The column of a node in characters; ast counts bytes."""
    return len(text.encode()[: getattr(node, "col_offset", 0)].decode(errors="ignore"))
