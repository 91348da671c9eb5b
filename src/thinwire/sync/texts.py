"""Texts of local training, outer optimizers and policies, read with the catalog's reader.

`local(sync_every=16, composition=ef(topk(density=0.01)), outer_optimizer=nesterov(lr=0.7, momentum=0.9))`. A part may
be quoted, as in a call of `thinwire.local`. A composition alone means gradients in each step.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import catalog
from ..catalog import COMPOSED
from ..core import Aggregator, CompositionError, Compressor
from .optimizers import SGD, Adam, Average, Nesterov, OuterOptimizer
from .policies import BSP, Drift, Every, PostLocal, SyncPolicy
from .settings import Local
from .torch_optimizers import torch_optimizers

OUTER_OPTIMIZERS: dict[str, type[Any]] = {"average": Average, "sgd": SGD, "nesterov": Nesterov, "adam": Adam}
OUTER_OPTIMIZERS |= {name: cls for name, cls in torch_optimizers().items() if name not in OUTER_OPTIMIZERS}
POLICIES: dict[str, type[Any]] = {"every": Every, "bsp": BSP, "post_local": PostLocal, "drift": Drift}
KINDS: dict[str, Mapping[str, type[Any]]] = {
    "outer optimizers": OUTER_OPTIMIZERS,
    "policies": POLICIES,
    "local settings": {"local": Local},
}
PARTS = {"local": Local} | OUTER_OPTIMIZERS | POLICIES
_NAMES = {cls: name for name, cls in PARTS.items()}


class SyncReader(catalog.Reader):
    """The catalog's reader with the parts of local training."""

    kinds = catalog.KINDS | KINDS

    def _inner(self, node: ast.expr, wanted: Any) -> Any:
        kinds = set(catalog.member_types(wanted))
        quoted = isinstance(node, ast.Constant) and isinstance(node.value, str)
        for kind, name in ((OuterOptimizer, "outer optimizers"), (SyncPolicy, "policies")):
            if kind in kinds and (quoted or int not in kinds or not isinstance(node, ast.Constant)):
                part = self._quoted(node, (name,)) if quoted else self._part(node, (name,))
                if type(part) not in self.kinds[name].values():
                    raise self._error(node, f"expected one of the {name}: {', '.join(self.kinds[name])}")
                return part
        if Aggregator in kinds:
            try:
                return _as_aggregator(self._quoted(node, COMPOSED) if quoted else self._part(node, COMPOSED))
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
    """Settings of local training from a text; a composition alone means gradients in each step."""
    part = SyncReader(text).part((*COMPOSED, "local settings"))
    return part if isinstance(part, Local) else Local(composition=_as_aggregator(part), payload="gradients")


def parse_outer_optimizer(text: str) -> OuterOptimizer:
    """The outer optimizer that a text describes."""
    part = SyncReader(text).part(("outer optimizers",))
    if type(part) not in OUTER_OPTIMIZERS.values():
        raise CompositionError(f"{text!r} is not an outer optimizer; there are {', '.join(OUTER_OPTIMIZERS)}")
    return part  # type: ignore[no-any-return]


def resolve_outer_optimizer(optimizer: OuterOptimizer | str) -> OuterOptimizer:
    """The outer optimizer that a text describes; an object is returned as it is."""
    return parse_outer_optimizer(optimizer) if isinstance(optimizer, str) else optimizer


def parse_policy(text: str) -> SyncPolicy:
    """The synchronization policy that a text describes."""
    part = SyncReader(text).part(("policies",))
    if type(part) not in POLICIES.values():
        raise CompositionError(f"{text!r} is not a policy; there are {', '.join(POLICIES)}, or a number of steps")
    return part  # type: ignore[no-any-return]


def sync_text(part: Any, write: Callable[[Any], str] = catalog.to_text) -> str:
    """The shortest text that parses to the same settings.

    write: the text of a catalog part; `catalog.part_text` accepts parts that are not registered, too.
    """
    if type(part) not in _NAMES:
        return write(part)
    if isinstance(part, Local) and part == Local(composition=part.composition, payload="gradients"):
        return write(part.composition)
    arguments = catalog.changed_settings(part, lambda inner: sync_text(inner, write))
    return f"{_NAMES[type(part)]}({', '.join(arguments)})"


def _as_aggregator(part: Any) -> Aggregator[Any]:
    if isinstance(part, Compressor):
        return catalog.default_aggregator(part)
    if type(part) in _NAMES or not isinstance(part, Aggregator):
        raise CompositionError(f"{sync_text(part)} is not a composition; write for example ef(topk(density=0.01))")
    return part
