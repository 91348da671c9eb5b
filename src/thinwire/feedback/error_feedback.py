"""Error feedback (Seide et al., 2014; Karimireddy et al., 2019): send C(g + e), keep e ← g + e − C(g + e)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from torch import Tensor

from ..core import (
    Aggregator,
    Capabilities,
    Capability,
    Context,
    Key,
    LayerBatch,
    Program,
    Reduced,
    ReducedBatch,
    TensorSpec,
    cast_saturating,
    check_inner,
    inherit_capabilities,
    reduce_with_residual,
    saturate,
    target_of,
)
from .residuals import (
    Int8Residual,
    ResidualMemory,
    check_residual_dtype,
    dequantize_residual,
    quantize_layer_residual,
    zero_residual,
)

_ALWAYS = frozenset(
    {Capability.LOSSLESS, Capability.CORRECTS_ERROR, Capability.KEEPS_RESIDUAL, Capability.ACCEPTS_MOMENT_PAIRS}
)


class ErrorFeedbackState(NamedTuple):
    """The residual e and the state of the inner aggregator."""

    residual: Tensor | Int8Residual
    inner: Any


@dataclass(frozen=True)
class ErrorFeedback(ResidualMemory):
    """Send C(g + e) and keep the residual e ← g + e − C(g + e): the sum of sent + e is the sum of all gradients.

    The residual is float32 or wider, so that what half precision rounds away is kept as well.

    Args:
        inner: the aggregator that sends C(g + e), such as topk(density=0.01).
        residual_dtype: "fp32"; "bf16" takes half the memory, "int8" a quarter, by stochastic rounding. The sums are
            then equal in expectation.
    """

    inner: Aggregator[Any]
    residual_dtype: str = "fp32"

    @cached_property
    def capabilities(self) -> Capabilities:
        batches = self.residual_dtype == "fp32"
        return _ALWAYS | (inherit_capabilities(self.inner, Capability.BATCHES_LAYERS) if batches else frozenset())

    def __post_init__(self) -> None:
        check_inner("ErrorFeedback", self.inner)
        check_residual_dtype("ErrorFeedback", self.residual_dtype)

    def init(self, spec: TensorSpec, key: Key) -> ErrorFeedbackState:
        return ErrorFeedbackState(zero_residual(spec, self.residual_dtype), self.inner.init(spec, key))

    def reduce(
        self, tensor: Tensor, spec: TensorSpec, state: ErrorFeedbackState, ctx: Context
    ) -> Program[Reduced[ErrorFeedbackState]]:
        residual = dequantize_residual(state.residual, spec)
        out, unsent = yield from reduce_with_residual(self.inner, tensor, residual, spec, state.inner, ctx)
        stored = quantize_layer_residual(spec.name, unsent, self.residual_dtype, ctx)
        return out.with_state(ErrorFeedbackState(stored, out.state))

    def reduce_many(self, batch: LayerBatch, ctx: Context) -> Program[ReducedBatch]:
        residuals, inner = [state.residual for state in batch.states], [state.inner for state in batch.states]
        out = yield from self.inner.reduce_many(batch._replace(states=inner, residuals=residuals), ctx)  # type: ignore[attr-defined]
        return out.with_states([ErrorFeedbackState(*pair) for pair in zip(out.residuals, out.states, strict=True)])  # type: ignore[no-any-return]

    def target(self, tensor: Tensor, spec: TensorSpec, state: ErrorFeedbackState, ctx: Context) -> Tensor:
        """What the compressor receives: g + e."""
        wide = saturate(cast_saturating(tensor, spec.dtype) + dequantize_residual(state.residual, spec))
        return target_of(self.inner, wide, spec, state.inner, ctx)
