"""Base of importance compressors (Khafizov & Beznosikov, 2024): coordinates are selected or scaled by an importance w.

w >= 0 has one number per coordinate and is never sent: receivers get values that are scaled already. Without w all
coordinates are equal, w = 1. `thinwire.importance` solves for w; `Exchanger.importance` holds it for each layer.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from ..core import (
    Capabilities,
    Capability,
    CompositionError,
    Compressor,
    Contract,
    IncompatibleParts,
    TensorSpec,
    cast_saturating,
    saturate,
)
from .sparse import FixedCountCompressor
from .topk import TopK

WEIGHTS = ("none", "plain", "normalized", "clamped")
MAX_WEIGHT = 2.0  # sending more than 2x is further from x than sending nothing


@dataclass(frozen=True)
class ImportanceCompressor(FixedCountCompressor):
    """Base of compressors with an importance w. It is not a setting: compressors compare equal whatever their w."""

    declared: ClassVar[Capabilities] = FixedCountCompressor.declared | {Capability.TAKES_IMPORTANCE}

    importance: Tensor | None = field(default=None, compare=False, repr=False)

    @cached_property
    def capabilities(self) -> Capabilities:
        """With an importance, layers are not batched: it has one number for each coordinate of one layer."""
        return super().capabilities if self.importance is None else self.declared

    def with_importance(self, importance: Tensor) -> Compressor:
        return replace(self, importance=importance.detach().flatten())

    def for_shard(self, num_shards: int) -> Compressor:
        """Return Top-k: a second hop sees averages of values that are scaled already, and must not scale them again."""
        return TopK(self.density, self.k, self.values).for_shard(num_shards)

    def contract(self, spec: TensorSpec) -> Contract:
        return Contract()  # no bound holds for every w: it may be zero just where x is not

    def importance_for(self, flat: Tensor) -> Tensor | None:
        """Return w, or None if there is none; raise IncompatibleParts if it does not fit the tensor."""
        if self.importance is not None and self.importance.numel() != flat.numel():
            raise IncompatibleParts(
                f"{type(self).__name__} was given the importance of {self.importance.numel()} coordinates, "
                f"the tensor has {flat.numel()}; give each layer its own"
            )
        return self.importance


SCALES_BY_IMPORTANCE = ImportanceCompressor.declared | {Capability.SCALES_KEPT}


@dataclass(frozen=True)
class ScaledImportanceCompressor(ImportanceCompressor):
    """Base of importance compressors that may multiply what they send by w.

    weights="none" sends x, "plain" w·x, "normalized" s·w·x with s = k / (sum of w over the kept coordinates), "clamped"
    the same with s·w at most 2: then |x - C(x)| <= |x| for every w, so that error feedback does not amplify.
    """

    weights: str = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights not in WEIGHTS:
            raise CompositionError(
                f"{type(self).__name__}: weights must be one of {', '.join(WEIGHTS)}, got {self.weights!r}"
            )

    @cached_property
    def capabilities(self) -> Capabilities:
        scales = self.importance is not None and self.weights != "none"
        return SCALES_BY_IMPORTANCE if scales else super().capabilities

    def take(self, flat: Tensor, positions: Tensor) -> Tensor:
        importance = self.importance_for(flat)
        if importance is None or self.weights == "none":
            return flat[positions]
        return cast_finite(flat[positions].double() * scale_factors(importance[positions], self.weights), flat.dtype)


def cast_finite(doubles: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast float64 to `dtype`; values that are too large become its largest, also those that overflowed float64."""
    return cast_saturating(saturate(doubles), dtype)


def scale_factors(importance: Tensor, weights: str) -> Tensor:
    """Return s·w of the kept coordinates in float64; for "normalized" and "clamped", ones if all their w are zero."""
    wide = importance.double()
    if weights == "plain":
        return wide
    scaled = normalize_importance(wide) * wide.numel()
    return scaled.clamp(max=MAX_WEIGHT) if weights == "clamped" else scaled


def normalize_importance(importance: Tensor) -> Tensor:
    """Return w / sum w in float64; equal parts if all w are zero."""
    wide = importance.double()
    total = wide.sum()
    return torch.where(total > 0, wide / total, 1 / max(1, wide.numel()))
