"""What was not sent helps to choose what is."""

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
from .residuals import Kept, ResidualMemory, check_form, keep_for, no_residual, recall


class SCAMState(NamedTuple):
    residual: Tensor | Kept
    inner: Any


@dataclass(frozen=True)
class SCAM(ResidualMemory):
    """Choose coordinates by residual + tensor, send the pure tensor there: as published, nothing is lost, but kept.

    As published, sending does not change the residual on the coordinates sent, which may grow without bound.
    discharge=True forgets it there; decay < 1 forgets a part of it everywhere, at every step. `inner` is an aggregator
    of a compressor that chooses (Top-k, thresholds). residual="bf16" or "int8" keeps it in less memory.
    """

    capabilities: ClassVar[Capabilities] = frozenset({Capability.LOSSLESS, Capability.CORRECTS_ERROR})

    inner: Aggregator[Any]
    discharge: bool = False
    decay: float = 1.0
    residual: str = "fp32"

    def __post_init__(self) -> None:
        check_inner("SCAM", self.inner)
        encodes = self.inner.compressor if wraps_compressor(self.inner) else self.inner
        if not selects_coordinates(encodes):
            name = type(encodes).__name__
            raise IncompatibleParts(
                "SCAM selects coordinates by residual + tensor and sends the tensor; "
                f"{name} does not choose: use scam(topk(...))"
            )
        if not 0 < self.decay <= 1:
            raise CompositionError(f"SCAM: decay must be in (0, 1], got {self.decay}; 1 keeps the residual whole")
        check_form("SCAM", self.residual)

    def init(self, spec: TensorSpec, key: Key) -> SCAMState:
        return SCAMState(no_residual(spec, self.residual), self.inner.init(spec, key))

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: SCAMState, ctx: Context) -> Program[Reduced[SCAMState]]:
        rank, inner, before = ctx.world.rank, self.inner, recall(state.residual, spec)
        chooser: CoordinateSelector = inner.compressor  # type: ignore[attr-defined]
        positions = chooser.select(saturate(before + tensor).flatten(), ctx.key(spec.name, rank))
        there = replace(inner, compressor=Chosen(chooser, positions))  # type: ignore[type-var]
        out = yield from there.reduce(tensor, spec, state.inner, ctx)
        rest = saturate(before + (tensor - out.sent))  # so bracketed, `before` stays to the bit where all was sent
        if self.discharge:
            rest = rest.flatten().index_fill(0, positions, 0).view(spec.shape)
        residual = keep_for(spec.name, rest * self.decay, self.residual, ctx)
        return Reduced(out.value, out.sent, SCAMState(residual, out.state))

    def target(self, tensor: Tensor, spec: TensorSpec, state: SCAMState, ctx: Context) -> Tensor:
        """What coordinates are chosen by; of the tensor itself the numbers there are sent."""
        return saturate(recall(state.residual, spec) + cast_saturating(tensor, spec.dtype))


@dataclass(frozen=True, eq=False)
class Chosen:
    """A compressor whose choice was made already, by another tensor than the one it is given to send."""

    capabilities: ClassVar[Capabilities] = frozenset({Capability.SELECTS_COORDINATES})

    chooser: CoordinateSelector
    positions: Tensor

    def select(self, scores: Tensor, key: Key) -> Tensor:
        del scores, key
        return self.positions

    def encode(self, tensor: Tensor, key: Key) -> Payload:
        kept = self.take(tensor.flatten(), self.positions)
        return self.encode_at(kept, self.positions, tensor.numel(), key)

    def take(self, flat: Tensor, positions: Tensor) -> Tensor:
        return self.chooser.take(flat, positions)

    def encode_at(self, kept: Tensor, positions: Tensor, numel: int, key: Key) -> Payload:
        return self.chooser.encode_at(kept, positions, numel, key)

    def decode(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        return self.chooser.decode(payload, spec, key)

    def decode_at(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        return self.chooser.decode_at(payload, spec, key)

    def for_shard(self, num_shards: int) -> Compressor:
        return self.chooser.for_shard(num_shards)  # which chooses by what it is given: a second hop sees other tensors

    def contract(self, spec: TensorSpec) -> Contract:
        return self.chooser.contract(spec)

    def num_bytes(self, spec: TensorSpec) -> float:
        return self.chooser.num_bytes(spec)
