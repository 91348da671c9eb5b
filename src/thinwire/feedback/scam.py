"""SCAM (Khafizov, 2025): select coordinates by |residual + gradient|, send the plain gradient there, keep the rest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from ..core import (
    Aggregator,
    Capabilities,
    Capability,
    CompositionError,
    Compressor,
    Context,
    Contract,
    CoordinateSelector,
    IncompatibleParts,
    Key,
    Payload,
    Program,
    Reduced,
    TensorSpec,
    cast_saturating,
    check_inner,
    saturate,
    selects_coordinates,
    wraps_compressor,
)
from .residuals import (
    Int8Residual,
    ResidualMemory,
    check_residual_dtype,
    dequantize_residual,
    quantize_layer_residual,
    zero_residual,
)


class SCAMState(NamedTuple):
    """The residual e and the state of the inner aggregator."""

    residual: Tensor | Int8Residual
    inner: Any


@dataclass(frozen=True)
class SCAM(ResidualMemory):
    """Select coordinates by |e + g|, send the plain g there, add the rest of g to e: sum of sent + e = sum of all g.

    As published, sending a coordinate does not change its residual, which may grow without bound. `reset_selected` and
    `decay` bound it and give up the identity.

    Args:
        inner: an aggregator of a compressor that selects coordinates, such as topk(density=0.01).
        reset_selected: set the residual to zero at the selected coordinates.
        decay: factor of the residual at every step, in (0, 1].
        residual_dtype: "fp32", "bf16" or "int8", as in `ef`.
    """

    capabilities: ClassVar[Capabilities] = frozenset({Capability.LOSSLESS, Capability.CORRECTS_ERROR})

    inner: Aggregator[Any]
    reset_selected: bool = False
    decay: float = 1.0
    residual_dtype: str = "fp32"

    def __post_init__(self) -> None:
        check_inner("SCAM", self.inner)
        encoder = self.inner.compressor if wraps_compressor(self.inner) else self.inner
        if not selects_coordinates(encoder):
            raise IncompatibleParts(
                "SCAM selects coordinates by residual + gradient and sends the gradient there; "
                f"{type(encoder).__name__} does not select coordinates. Use scam(topk(...))"
            )
        if not 0 < self.decay <= 1:
            raise CompositionError(f"SCAM: decay must be in (0, 1], got {self.decay}; 1 keeps all of the residual")
        check_residual_dtype("SCAM", self.residual_dtype)

    def init(self, spec: TensorSpec, key: Key) -> SCAMState:
        return SCAMState(zero_residual(spec, self.residual_dtype), self.inner.init(spec, key))

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: SCAMState, ctx: Context) -> Program[Reduced[SCAMState]]:
        inner, old = self.inner, dequantize_residual(state.residual, spec)
        selector: CoordinateSelector = inner.compressor  # type: ignore[attr-defined]
        positions = selector.select(saturate(old + tensor).flatten(), ctx.key(spec.name, ctx.world.rank))
        sender = replace(inner, compressor=FixedSelection(selector, positions))  # type: ignore[type-var]
        out = yield from sender.reduce(tensor, spec, state.inner, ctx)
        new = saturate(old + (tensor - out.sent))  # in this order, `old` keeps its bits where all was sent
        if self.reset_selected:
            new = new.flatten().index_fill(0, positions, 0).view(spec.shape)
        residual = quantize_layer_residual(spec.name, new * self.decay, self.residual_dtype, ctx)
        return Reduced(out.value, out.sent, SCAMState(residual, out.state))

    def target(self, tensor: Tensor, spec: TensorSpec, state: SCAMState, ctx: Context) -> Tensor:
        """e + g, by which coordinates are selected; the values sent there are those of g."""
        return saturate(dequantize_residual(state.residual, spec) + cast_saturating(tensor, spec.dtype))


@dataclass(frozen=True, eq=False)
class FixedSelection:
    """A sparse compressor with given positions: they were selected by another tensor than the one it encodes."""

    capabilities: ClassVar[Capabilities] = frozenset({Capability.SELECTS_COORDINATES})

    selector: CoordinateSelector
    positions: Tensor

    def select(self, scores: Tensor, key: Key) -> Tensor:
        del scores, key
        return self.positions

    def encode(self, tensor: Tensor, key: Key) -> Payload:
        values = self.take(tensor.flatten(), self.positions)
        return self.encode_at(values, self.positions, tensor.numel(), key)

    def take(self, flat: Tensor, positions: Tensor) -> Tensor:
        return self.selector.take(flat, positions)

    def encode_at(self, kept: Tensor, positions: Tensor, numel: int, key: Key) -> Payload:
        return self.selector.encode_at(kept, positions, numel, key)

    def decode(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        return self.selector.decode(payload, spec, key)

    def decode_at(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        return self.selector.decode_at(payload, spec, key)

    def for_shard(self, num_shards: int) -> Compressor:
        return self.selector.for_shard(num_shards)  # which selects anew: a second hop encodes other tensors

    def contract(self, spec: TensorSpec) -> Contract:
        return self.selector.contract(spec)

    def num_bytes(self, spec: TensorSpec) -> float:
        return self.selector.num_bytes(spec)
