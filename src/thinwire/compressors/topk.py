"""The k largest coordinates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..core import Capabilities, Capability, Contract, Key, Payload, TensorSpec
from ..kernels import largest_magnitudes, subtract_at, take_largest
from ..wire import index_part
from .cast import Cast
from .identity import Identity
from .sparse import Counted, then, values_spec


@dataclass(frozen=True)
class TopK(Counted):
    """Send the k largest |x| with their positions: k·(b + log2(d/k) + 1.5) bits. Biased, delta = k/d; wants feedback.

    Exactly k are sent; among equal magnitudes the first. `values` encodes what was kept: "bf16", power2(), qsgd() ...
    """

    capabilities: ClassVar[Capabilities] = Counted.capabilities | {Capability.ESTIMATES_ERRORS}

    def select(self, scores: Tensor, key: Key) -> Tensor:
        del key  # deterministic
        return largest_magnitudes(scores, self.count(scores.numel()))

    def encode_with_residual(self, tensor: Tensor, residual: Tensor, key: Key) -> tuple[Payload, Tensor]:
        """The largest are taken out of the sum in one go; what their values lose on the way comes back."""
        numel, count = tensor.numel(), self.count(tensor.numel())
        rest, kept, positions, coded = take_largest(tensor.flatten(), residual.flatten(), count)
        payload = self._payload(kept, index_part(coded, count, numel), key)
        if not isinstance(self.values, Identity):
            arrived = self._values(payload, TensorSpec.of("", rest), count, key)
            subtract_at(rest, positions, arrived - kept)
        return payload, rest.view(tensor.shape)

    def contract(self, spec: TensorSpec) -> Contract:
        count = self.count(spec.numel)
        return then(count / max(1, spec.numel), self.values, values_spec(spec, count))

    def estimate_errors(
        self, tensor: Tensor, spec: TensorSpec, options: Sequence[Any], key: Key, exact: bool
    ) -> Sequence[float | None]:
        """One selection prices all counts; the rounding of a cast is left out unless `exact` is asked."""
        del key
        lossless = (Identity,) if exact else (Identity, Cast)
        counts = [
            option.count(spec.numel) if isinstance(option, TopK) and isinstance(option.values, lossless) else None
            for option in options
        ]
        known = [count for count in counts if count is not None]
        if not known:
            return counts
        flat, most = tensor.flatten(), max(known)
        chosen = largest_magnitudes(flat, most)
        rest = float(flat.index_fill(0, chosen, 0).double().square().sum())  # what no option would send
        kept = flat[chosen].abs().sort().values.double().square()
        left = torch.cat([kept.new_zeros(1), kept.cumsum(0)]) + rest  # ... and the smallest ones of those chosen
        return [None if count is None else math.sqrt(float(left[most - count])) for count in counts]
