"""Top-k (Aji & Heafield, 2017; Stich et al., 2018): send the k largest magnitudes with their positions."""

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
from .sparse import FixedCountCompressor, combine_contracts, values_spec


@dataclass(frozen=True)
class TopK(FixedCountCompressor):
    """Send the k largest |x| with positions: k·(b + log2(d/k) + 1.5) bits. Biased, delta = k/d; use error feedback.

    Exactly k are sent; among equal magnitudes the first.

    Args:
        density: fraction of coordinates to send, in (0, 1]; give either this or k.
        k: number of coordinates to send.
        values: compressor of the kept values, such as "bf16", nearest_power2() or qsgd().
    """

    capabilities: ClassVar[Capabilities] = FixedCountCompressor.capabilities | {Capability.ESTIMATES_ERRORS}

    def select(self, scores: Tensor, key: Key) -> Tensor:
        del key  # deterministic
        return largest_magnitudes(scores, self.count(scores.numel()))

    def encode_with_residual(self, tensor: Tensor, residual: Tensor, key: Key) -> tuple[Payload, Tensor]:
        """Take the k largest out of the sum in one pass; then add back what `values` lost of them."""
        numel, count = tensor.numel(), self.count(tensor.numel())
        new_residual, kept, positions, coded = take_largest(tensor.flatten(), residual.flatten(), count)
        payload = self._payload(kept, index_part(coded, count, numel), key)
        if not isinstance(self.values, Identity):
            arrived = self._values(payload, TensorSpec.of("", new_residual), count, key)
            subtract_at(new_residual, positions, arrived - kept)
        return payload, new_residual.view(tensor.shape)

    def contract(self, spec: TensorSpec) -> Contract:
        count = self.count(spec.numel)
        return combine_contracts(count / max(1, spec.numel), self.values, values_spec(spec, count))

    def estimate_errors(
        self, tensor: Tensor, spec: TensorSpec, options: Sequence[Any], key: Key, exact: bool
    ) -> Sequence[float | None]:
        """Compute errors for all counts from one selection; the rounding of a cast is ignored unless `exact` is set."""
        del key
        lossless = (Identity,) if exact else (Identity, Cast)
        counts = [
            option.count(spec.numel) if isinstance(option, TopK) and isinstance(option.values, lossless) else None
            for option in options
        ]
        known = [count for count in counts if count is not None]
        if not known:
            return counts
        flat, max_count = tensor.flatten(), max(known)
        chosen = largest_magnitudes(flat, max_count)
        never_sent = float(flat.index_fill(0, chosen, 0).double().square().sum())  # by any option
        kept = flat[chosen].abs().sort().values.double().square()
        errors2 = torch.cat([kept.new_zeros(1), kept.cumsum(0)]) + never_sent  # [i]: the i smallest of kept not sent
        return [None if count is None else math.sqrt(float(errors2[max_count - count])) for count in counts]
