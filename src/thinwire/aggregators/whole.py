"""All layers as one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ..core import (
    Aggregator,
    Capabilities,
    Capability,
    Context,
    FlattenLayers,
    IncompatibleParts,
    Key,
    Program,
    Reduced,
    TensorSpec,
    capabilities_of,
    flatten_state,
    parts_of,
)

_BY_LAYER = {Capability.TAKES_IMPORTANCE, Capability.OFFERS_MENU, Capability.FLATTENS_LAYERS}  # cannot stand inside


@dataclass(frozen=True)
class Whole:
    """Take all layers that have this part for one vector: whole(topk(density=0.01)) keeps the largest of the model.

    Costs what `inner` costs for that vector. Layers that come earlier wait for the last; a layer may get nothing.
    Memories stand outside, ef(whole(topk(density=0.01))), and each layer keeps its own: that is the same thing.
    """

    capabilities: ClassVar[Capabilities] = frozenset({Capability.LOSSLESS, Capability.FLATTENS_LAYERS})

    inner: Aggregator[Any]

    def __post_init__(self) -> None:
        name = type(self.inner).__name__
        if flatten_state(self.inner.init(TensorSpec("any", (8, 8)), Key(0))):
            raise IncompatibleParts(
                f"Whole: {name} has a memory, which each layer should keep for itself; put it outside, as in "
                "ef(whole(topk(density=0.01)))"
            )
        for part in parts_of(self.inner):
            if capabilities_of(part) & _BY_LAYER:
                raise IncompatibleParts(
                    f"Whole: {type(part).__name__} treats each layer by itself; use whole(topk(density=0.01))"
                )

    def init(self, spec: TensorSpec, key: Key) -> tuple[()]:
        return ()

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: tuple[()], ctx: Context) -> Program[Reduced[tuple[()]]]:
        if not ctx.can_flatten:  # alone, a layer is the whole
            return (yield from self.inner.reduce(tensor, spec, state, ctx))
        return (yield FlattenLayers(self.inner, tensor, spec, ctx))  # type: ignore[no-any-return]
