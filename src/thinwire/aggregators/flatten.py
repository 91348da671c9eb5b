"""Global selection (Aji & Heafield, 2017): all layers as one vector, so that Top-k selects over the whole model."""

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

_PER_LAYER = {Capability.TAKES_IMPORTANCE, Capability.HAS_MENU, Capability.FLATTENS_LAYERS}  # refused inside


@dataclass(frozen=True)
class Flatten:
    """Concatenate all layers that use this part and aggregate one vector: flatten(topk(density=0.01)) is global Top-k.

    Costs what `inner` costs for that vector. The exchange starts when the last layer is ready; a layer may receive
    nothing but zeros. Memories go outside, ef(flatten(topk(density=0.01))): each layer keeps its own residual, which
    is the same as one residual of the flat vector.

    Args:
        inner: an aggregator without state, such as topk(density=0.01).
    """

    capabilities: ClassVar[Capabilities] = frozenset({Capability.LOSSLESS, Capability.FLATTENS_LAYERS})

    inner: Aggregator[Any]

    def __post_init__(self) -> None:
        name = type(self.inner).__name__
        if flatten_state(self.inner.init(TensorSpec("any", (8, 8)), Key(0))):
            raise IncompatibleParts(
                f"Flatten: {name} has state per layer and cannot be inside; put it outside, as in "
                "ef(flatten(topk(density=0.01)))"
            )
        for part in parts_of(self.inner):
            if capabilities_of(part) & _PER_LAYER:
                raise IncompatibleParts(
                    f"Flatten: {type(part).__name__} treats each layer separately and cannot be inside; "
                    "use flatten(topk(density=0.01))"
                )

    def init(self, spec: TensorSpec, key: Key) -> tuple[()]:
        return ()

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: tuple[()], ctx: Context) -> Program[Reduced[tuple[()]]]:
        if not ctx.can_flatten:  # the caller exchanges this layer alone
            return (yield from self.inner.reduce(tensor, spec, state, ctx))
        return (yield FlattenLayers(self.inner, tensor, spec, ctx))  # type: ignore[no-any-return]
