"""Rand-k (Stich et al., 2018): send k random coordinates; both sides draw the positions from a shared key."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..core import (
    DENSITY,
    Capabilities,
    Capability,
    Compressor,
    Contract,
    Key,
    Payload,
    TensorSpec,
    inherit_capabilities,
)
from ..kernels import distinct_positions, scatter
from .identity import Identity
from .sparse import check_count, combine_contracts, count_kept, values_key, values_spec


@dataclass(frozen=True)
class RandomK:
    """Send k random coordinates, scaled by d/k: k·b bits, positions follow from the key. Unbiased, omega = d/k - 1.

    Payloads of all ranks have the same positions, so they can be summed on the wire.

    Args:
        density: fraction of coordinates to send, in (0, 1]; give either this or k.
        k: number of coordinates to send.
        scaled: multiply by d/k. False sends values as they are: biased, delta = k/d in expectation.
        values: compressor of the kept values.
    """

    tunable = DENSITY

    density: float | None = None
    k: int | None = None
    scaled: bool = True
    values: Compressor = Identity()

    def __post_init__(self) -> None:
        check_count("RandomK", self.density, self.k)

    @cached_property
    def capabilities(self) -> Capabilities:
        declared = inherit_capabilities(self.values, Capability.ADDITIVE)
        declared |= {Capability.COUNTS_COORDINATES, Capability.EXPECTS_BYTES}
        if self.density == 1:  # all are kept, and the scale is 1
            return declared | inherit_capabilities(self.values, Capability.LOSSLESS)
        return declared | {Capability.SCALES_KEPT} if self.scaled else declared

    def encode(self, tensor: Tensor, key: Key) -> Payload:
        flat = tensor.flatten()
        kept = flat[distinct_positions(key, self.count(flat.numel()), flat.numel(), flat.device)]
        limit = torch.finfo(flat.dtype).max
        scaled = (kept.double() * self._scale(flat.numel())).clamp(-limit, limit)  # float64 may overflow, too
        return self.values.encode(scaled.to(flat.dtype), values_key(key))

    def decode(self, payload: Payload, spec: TensorSpec, key: Key) -> Tensor:
        count = self.count(spec.numel)
        kept = self.values.decode(payload, values_spec(spec, count), values_key(key))
        return scatter(kept, distinct_positions(key, count, spec.numel, spec.device), spec.numel).view(spec.shape)

    def contract(self, spec: TensorSpec) -> Contract:
        count = self.count(spec.numel)
        kept = values_spec(spec, count)
        if not self.scaled:
            return combine_contracts(count / max(1, spec.numel), self.values, kept)
        omega = self.values.contract(kept).omega
        scale = self._scale(spec.numel)
        return Contract(omega=None if omega is None else scale - 1 + omega * scale)

    def num_bytes(self, spec: TensorSpec) -> float:
        return self.values.num_bytes(values_spec(spec, self.count(spec.numel)))

    def count(self, numel: int) -> int:
        return count_kept(self.density, self.k, numel)

    def _scale(self, numel: int) -> float:
        return numel / self.count(numel) if self.scaled and numel else 1.0
