"""Top-k (Aji & Heafield, 2017; Stich et al., 2018): send the k largest magnitudes with their positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core import Capabilities, Capability, Contract, EncodedBatch, Key, LayerBatch, Payload, SameObject, TensorSpec
from ..kernels import largest_magnitudes, subtract_at, take_changes_many, take_largest, take_largest_many
from ..wire import index_part
from .cast import Cast
from .identity import Identity
from .sparse import FixedCountCompressor, combine_contracts, values_spec
from .sparse_batches import label_pairs


@dataclass(frozen=True)
class TopK(FixedCountCompressor):
    """Send the k largest |x| with positions: k·(b + log2(d/k) + 1.5) bits. Biased, delta = k/d; use error feedback.

    Exactly k are sent; among equal magnitudes the first.

    Args:
        density: fraction of coordinates to send, in (0, 1]; give either this or k.
        k: number of coordinates to send.
        values: compressor of the kept values, such as "bf16", nearest_power2() or qsgd().
    """

    declared: ClassVar[Capabilities] = FixedCountCompressor.declared | {Capability.ESTIMATES_ERRORS}

    @cached_property
    def capabilities(self) -> Capabilities:
        own = super().capabilities
        return own | {Capability.FUSES_ESTIMATE} if Capability.BATCHES_LAYERS in own else own

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

    def encode_many(self, batch: LayerBatch, keys: Sequence[Key]) -> EncodedBatch:
        del keys  # deterministic
        counts = [self.count(spec.numel) for spec in batch.specs]
        if batch.estimates is None:
            taken = take_largest_many(batch.tensors, batch.residuals, counts)
        else:
            taken = take_changes_many(batch.tensors, batch.estimates, counts)
        if taken.first_bad >= 0:
            return EncodedBatch(Payload(()), None, taken.first_bad)
        labeled = label_pairs(taken, batch.specs, counts)
        if batch.estimates is None:
            return EncodedBatch(labeled, taken.rests, -1)
        return EncodedBatch(labeled, None, -1, taken.rests)

    def contract(self, spec: TensorSpec) -> Contract:
        count = self.count(spec.numel)
        return combine_contracts(count / max(1, spec.numel), self.values, values_spec(spec, count))

    def estimate_errors(
        self, tensor: Tensor, spec: TensorSpec, options: Sequence[Any], key: Key, exact: bool
    ) -> Sequence[float | None] | Tensor:
        """Compute errors for all counts from one selection; the rounding of a cast is ignored unless `exact` is set."""
        del key
        counts = _count_options(SameObject(tuple(options)), spec.numel, exact)
        if not len(counts.fewer):
            return counts.each
        flat = tensor.flatten()
        chosen = largest_magnitudes(flat, counts.largest)
        energy = flat.double().square()
        kept = _sort(energy[chosen])
        never_sent = energy.index_fill_(0, chosen, 0).sum()  # by any option
        errors2 = torch.cat([kept.new_zeros(1), kept.cumsum(0)]) + never_sent  # [i]: the i smallest of kept not sent
        known = errors2[counts.fewer].sqrt()
        if len(known) == len(options):
            return known
        errors = iter(known.tolist())
        return [None if count is None else next(errors) for count in counts.each]


def _sort(values: Tensor) -> Tensor:
    """Sort ascending; numpy takes half the time of torch, which sorts indices, too."""
    return torch.from_numpy(np.sort(values.numpy())) if values.is_cpu else values.sort().values


class _Counts(NamedTuple):
    """How many coordinates options send."""

    each: tuple[int | None, ...]  # None: not known
    largest: int
    fewer: Tensor  # (known options,) how many fewer than the largest


@lru_cache(maxsize=4096)
def _count_options(options: SameObject[tuple[Any, ...]], numel: int, exact: bool) -> _Counts:
    lossless = (Identity,) if exact else (Identity, Cast)
    each = tuple(
        option.count(numel) if isinstance(option, TopK) and isinstance(option.values, lossless) else None
        for option in options.value
    )
    known = [count for count in each if count is not None]
    largest = max(known, default=0)
    return _Counts(each, largest, largest - torch.tensor(known, dtype=torch.int64))
