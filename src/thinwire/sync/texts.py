"""Local training as text: `local(every=16, exchange=ef(topk(density=0.01)), outer=nesterov(lr=0.7, momentum=0.9))`.

The catalog's reader with a small table of our own. A part may stand in quotes, as it does in a call of
`thinwire.local`. A composition alone is what it always was: gradients, at every step.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import catalog
from ..catalog import COMPOSED
from ..core import Aggregator, CompositionError, Compressor
from .optimizers import SGD, Adam, Average, Nesterov, Outer
from .policies import BSP, Drift, Every, PostLocal, SyncPolicy
from .settings import Local
from .torch_optimizers import torch_optimizers

OUTERS: dict[str, type[Any]] = {"average": Average, "sgd": SGD, "nesterov": Nesterov, "adam": Adam}
OUTERS |= {name: cls for name, cls in torch_optimizers().items() if name not in OUTERS}
POLICIES: dict[str, type[Any]] = {"every": Every, "bsp": BSP, "post_local": PostLocal, "drift": Drift}
KINDS: dict[str, Mapping[str, type[Any]]] = {
    "outer optimizers": OUTERS,
    "policies": POLICIES,
    "local settings": {"local": Local},
}
PARTS = {"local": Local} | OUTERS | POLICIES
_NAMES = {cls: name for name, cls in PARTS.items()}


class _Reader(catalog.Reader):
    kinds = catalog.KINDS | KINDS

    def _inner(self, node: ast.expr, wanted: Any) -> Any:
        kinds = set(catalog.member_types(wanted))
        quoted = isinstance(node, ast.Constant) and isinstance(node.value, str)
        for kind, name in ((Outer, "outer optimizers"), (SyncPolicy, "policies")):
            if kind in kinds and (quoted or int not in kinds or not isinstance(node, ast.Constant)):
                part = self._quoted(node, (name,)) if quoted else self._part(node, (name,))
                if type(part) not in self.kinds[name].values():
                    raise self._error(node, f"one of these is needed here: {', '.join(self.kinds[name])}")
                return part
        if Aggregator in kinds:
            try:
                return _composition(self._quoted(node, COMPOSED) if quoted else self._part(node, COMPOSED))
            except CompositionError as error:
                raise error if "\n" in str(error) else self._error(node, str(error)) from None
        return super()._inner(node, wanted)

    def _quoted(self, node: ast.expr, kinds: Sequence[str]) -> Any:
        assert isinstance(node, ast.Constant)
        try:
            return type(self)(str(node.value)).part(kinds)
        except CompositionError as error:
            raise self._error(node, str(error)) from None


def parse_sync(text: str) -> Local:
    """The settings a text describes; a composition alone means gradients at every step."""
    part = _Reader(text).part((*COMPOSED, "local settings"))
    return part if isinstance(part, Local) else Local(exchange=_composition(part), payload="gradients")


def parse_outer(text: str) -> Outer:
    part = _Reader(text).part(("outer optimizers",))
    if type(part) not in OUTERS.values():
        raise CompositionError(f"{text!r} is no outer optimizer; there are {', '.join(OUTERS)}")
    return part  # type: ignore[no-any-return]


def outer_of(optimizer: Outer | str) -> Outer:
    """The outer optimizer that a text describes, or the one that is given."""
    return parse_outer(optimizer) if isinstance(optimizer, str) else optimizer


def parse_policy(text: str) -> SyncPolicy:
    part = _Reader(text).part(("policies",))
    if type(part) not in POLICIES.values():
        raise CompositionError(f"{text!r} is no policy; there are {', '.join(POLICIES)}, or a number of steps")
    return part  # type: ignore[no-any-return]


def sync_text(part: Any, write: Callable[[Any], str] = catalog.to_text) -> str:
    """The shortest text that is read back to the same settings.

    write: the text of parts that are not from here; `catalog.part_text` takes those that no catalog lists, too.
    """
    if type(part) not in _NAMES:
        return write(part)
    if isinstance(part, Local) and part == Local(exchange=part.exchange, payload="gradients"):
        return write(part.exchange)
    arguments = catalog.changed_settings(part, lambda inside: sync_text(inside, write))
    return f"{_NAMES[type(part)]}({', '.join(arguments)})"


def _composition(part: Any) -> Aggregator[Any]:
    if isinstance(part, Compressor):
        return catalog.default_aggregator(part)
    if type(part) in _NAMES or not isinstance(part, Aggregator):
        raise CompositionError(f"{sync_text(part)} is no exchange; write for example ef(topk(density=0.01))")
    return part
