"""Sampling by importance (MD Stochastic, Khafizov & Beznosikov, 2024): send x at k coordinates drawn ∝ w."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..core import Capabilities, Capability, CompositionError, Contract, Key, TensorSpec
from .importance_base import SCALES_BY_IMPORTANCE, ImportanceCompressor, cast_finite, normalize_importance
from .sparse import values_spec
from .weighted_sampling import draw_uniform, sample_without_replacement


@dataclass(frozen=True)
class ImportanceSampling(ImportanceCompressor):
    """Send x at k coordinates drawn without replacement, probabilities ∝ w: as Top-k. Biased, |C(x)| <= |x|.

    poisson=true is Poisson sampling: each coordinate is drawn by itself with p ≈ min(1, k·w / sum w), and x / p is
    sent. That is unbiased for every w, with omega = d / (uniform_fraction·k) - 1 at worst; about k are sent.

    Args:
        density: fraction of coordinates to send, in (0, 1]; give either this or k.
        k: number of coordinates to send.
        values: compressor of the kept values.
        poisson: draw each coordinate by itself and divide by its probability.
        uniform_fraction: fraction of the probability that is spread evenly over all coordinates with poisson=true, in
            (0, 1]; then p >= uniform_fraction·k/d also where w is zero.
    """

    poisson: bool = False
    uniform_fraction: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.uniform_fraction <= 1:
            raise CompositionError(
                f"ImportanceSampling: uniform_fraction must be in (0, 1], got {self.uniform_fraction}; 0.1 is usual"
            )

    @cached_property
    def capabilities(self) -> Capabilities:
        return SCALES_BY_IMPORTANCE | {Capability.VARIABLE_SIZE} if self.poisson else super().capabilities

    def bounds(self, numel: int) -> tuple[int, int]:
        return (0, numel) if self.poisson else super().bounds(numel)

    def select(self, scores: Tensor, key: Key) -> Tensor:
        if self.poisson:
            return (draw_uniform(key, scores) < self.probabilities(scores)).nonzero().flatten()
        importance = self.importance_for(scores)
        weights = torch.ones(scores.numel(), device=scores.device) if importance is None else importance
        return sample_without_replacement(weights.double().log(), self.count(scores.numel()), key)

    def probabilities(self, flat: Tensor) -> Tensor:
        """Return the probability with which Poisson sampling sends each coordinate."""
        importance, numel = self.importance_for(flat), max(1, flat.numel())
        even = torch.full((flat.numel(),), 1 / numel, dtype=torch.float64, device=flat.device)
        shares = even if importance is None else normalize_importance(importance)
        mixed = (1 - self.uniform_fraction) * shares + self.uniform_fraction * even
        return (self.count(flat.numel()) * mixed).clamp(max=1.0)

    def take(self, flat: Tensor, positions: Tensor) -> Tensor:
        if not self.poisson:
            return flat[positions]
        return cast_finite(flat[positions].double() / self.probabilities(flat)[positions], flat.dtype)

    def contract(self, spec: TensorSpec) -> Contract:
        inner = self.values.contract(values_spec(spec, spec.numel)).omega
        if not self.poisson or inner is None:
            return Contract()
        omega = max(1.0, spec.numel / (self.uniform_fraction * max(1, self.count(spec.numel)))) - 1
        return Contract(omega=omega + inner + omega * inner)
