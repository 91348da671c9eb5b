"""What was not sent is sent later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from ..core import (
    Aggregator,
    Capabilities,
    Capability,
    Context,
    Key,
    Program,
    Reduced,
    TensorSpec,
    cast_saturating,
    check_inner,
    reduce_with_residual,
    saturate,
    target_of,
)
from .residuals import Kept, ResidualMemory, check_form, keep_for, no_residual, recall


class FeedbackState(NamedTuple):
    residual: Tensor | Kept
    inner: Any


@dataclass(frozen=True)
class ErrorFeedback(ResidualMemory):
    """Add what earlier steps did not send, keep what this one does not: sum of sent + residual = sum of tensors.

    The residual is float32 or wider, so that what half precision rounds away is not lost either. residual="bf16" keeps
    it in half the memory, "int8" in a quarter; rounded by chance, so that the sums are then equal in the mean.
    """

    capabilities: ClassVar[Capabilities] = frozenset(
        {Capability.LOSSLESS, Capability.CORRECTS_ERROR, Capability.KEEPS_RESIDUAL, Capability.ACCEPTS_MOMENT_PAIRS}
    )

    inner: Aggregator[Any]
    residual: str = "fp32"

    def __post_init__(self) -> None:
        check_inner("ErrorFeedback", self.inner)
        check_form("ErrorFeedback", self.residual)

    def init(self, spec: TensorSpec, key: Key) -> FeedbackState:
        return FeedbackState(no_residual(spec, self.residual), self.inner.init(spec, key))

    def reduce(
        self, tensor: Tensor, spec: TensorSpec, state: FeedbackState, ctx: Context
    ) -> Program[Reduced[FeedbackState]]:
        before = recall(state.residual, spec)
        out, rest = yield from reduce_with_residual(self.inner, tensor, before, spec, state.inner, ctx)
        return out.with_state(FeedbackState(keep_for(spec.name, rest, self.residual, ctx), out.state))

    def target(self, tensor: Tensor, spec: TensorSpec, state: FeedbackState, ctx: Context) -> Tensor:
        wide = saturate(cast_saturating(tensor, spec.dtype) + recall(state.residual, spec))
        return target_of(self.inner, wide, spec, state.inner, ctx)
