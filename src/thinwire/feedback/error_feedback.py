"""What was not sent is sent later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import Aggregator, Context, Key, Program, Reduced, TensorSpec, narrow, saturate


class FeedbackState(NamedTuple):
    residual: Tensor
    inner: Any


@dataclass(frozen=True)
class ErrorFeedback:
    """Add what earlier steps did not send, keep what this one does not: sum of sent + residual = sum of tensors.

    The residual is float32 or wider, so that what half precision rounds away is not lost either.
    """

    inner: Aggregator[Any]

    def init(self, spec: TensorSpec, key: Key) -> FeedbackState:
        residual = torch.zeros(spec.shape, dtype=spec.work_dtype, device=spec.device)
        return FeedbackState(residual, self.inner.init(spec, key))

    def reduce(
        self, tensor: Tensor, spec: TensorSpec, state: FeedbackState, ctx: Context
    ) -> Program[Reduced[FeedbackState]]:
        target = saturate(tensor + state.residual)
        out = yield from self.inner.reduce(narrow(target, spec.dtype), spec, state.inner, ctx)
        return Reduced(out.value, out.sent, FeedbackState(saturate(target - out.sent), out.state))
