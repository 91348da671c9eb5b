"""Operators that are given an importance w >= 0, one number a coordinate, and choose or weigh by it.

w never travels: receivers get values that were weighed already. Without w all coordinates are equal, w = 1. It is found
by `thinwire.importance` and given through `Exchanger.importance`.
"""

from __future__ import annotations

import math
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
    Key,
    TensorSpec,
    cast_saturating,
    saturate,
)
from ..kernels import largest_magnitudes
from .race import first_arrivals, uniforms
from .sparse import Counted, values_spec
from .topk import TopK

WEIGHTS = ("none", "plain", "normalised", "clamped")
LARGEST_WEIGHT = 2.0  # a longer step than twice x leads further away from x than sending nothing


@dataclass(frozen=True)
class Important(Counted):
    """Base of those that are given w. It is no setting: two operators are equal whatever they were given."""

    capabilities: ClassVar[Capabilities] = Counted.capabilities | {Capability.TAKES_IMPORTANCE}

    importance: Tensor | None = field(default=None, compare=False, repr=False)

    def with_importance(self, importance: Tensor) -> Compressor:
        return replace(self, importance=importance.detach().flatten())

    def for_shard(self, num_shards: int) -> Compressor:
        """A second hop sees averages of what was weighed already: it keeps the largest and weighs nothing again."""
        return TopK(self.density, self.k, self.values).for_shard(num_shards)

    def contract(self, spec: TensorSpec) -> Contract:
        return Contract()  # nothing holds for every w: it may be zero just where x is not

    def importance_of(self, flat: Tensor) -> Tensor | None:
        """w, if it was given and fits the tensor."""
        if self.importance is not None and self.importance.numel() != flat.numel():
            raise IncompatibleParts(
                f"{type(self).__name__} was given the importance of {self.importance.numel()} coordinates, "
                f"the tensor has {flat.numel()}; give each layer its own"
            )
        return self.importance


_SCALES = Important.capabilities | {Capability.SCALES_KEPT}


@dataclass(frozen=True)
class Weighted(Important):
    """Base of those that may scale what they send by w.

    weights="none" sends values as they are, "plain" w·x, "normalised" s·w·x with s = k / (sum of w over what is kept),
    "clamped" the same with s·w at most 2: then |x - C(x)| <= |x| for every w, so that no memory amplifies.
    """

    weights: str = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights not in WEIGHTS:
            raise CompositionError(
                f"{type(self).__name__}: weights must be one of {', '.join(WEIGHTS)}, got {self.weights!r}"
            )

    @cached_property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        scales = self.importance is not None and self.weights != "none"
        return _SCALES if scales else Important.capabilities

    def take(self, flat: Tensor, positions: Tensor) -> Tensor:
        importance = self.importance_of(flat)
        if importance is None or self.weights == "none":
            return flat[positions]
        return _as(flat[positions].double() * factors(importance[positions], self.weights), flat.dtype)


@dataclass(frozen=True)
class ImpK(Weighted):
    """Send s·w·x at the k largest |w·x|: as Top-k. Biased; |x - C(x)| <= |x| if s·w <= 2, as "clamped" sees to.

    S0's MD Weighted Greedy, the thesis' ImpK. `weights` says how values are scaled: "none", "plain" (s = 1),
    "normalised" (s = k / sum of the kept w), "clamped". Without w it is Top-k.
    """

    weights: str = "clamped"

    def select(self, scores: Tensor, key: Key) -> Tensor:
        del key  # deterministic
        importance, magnitudes = self.importance_of(scores), scores.abs()
        return largest_magnitudes(
            magnitudes if importance is None else importance * magnitudes, self.count(scores.numel())
        )


@dataclass(frozen=True)
class Greedy(Weighted):
    """Send x at the k largest w: as Top-k. Biased; the same coordinates until w changes, so it wants feedback.

    S0's MD Greedy; with `weights` other than "none" its MD Greedy Weighted. Of equal w the larger |x| go first.
    among=2 looks at the 2·k largest |x| only: S0's "TopK then MD Greedy".
    """

    among: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.among is not None and not 1 <= self.among < math.inf:
            raise CompositionError(f"Greedy: among must be at least 1, got {self.among}; 2 chooses among 2k")

    def select(self, scores: Tensor, key: Key) -> Tensor:
        del key  # deterministic
        importance, magnitudes = self.importance_of(scores), scores.abs()
        count = self.count(scores.numel())
        if importance is None:
            return largest_magnitudes(magnitudes, count)
        if self.among is None:
            return most_important(importance, magnitudes, count)
        pool = largest_magnitudes(magnitudes, math.ceil(self.among * count))
        return pool[most_important(importance[pool], magnitudes[pool], count)]


@dataclass(frozen=True)
class Stochastic(Important):
    """Send x at k draws without replacement, chances in proportion to w: as Top-k. Biased, |C(x)| <= |x|.

    S0's MD Stochastic. poisson=true draws each coordinate by itself, with p = min(1, k·w / sum w), and sends x / p:
    unbiased, about k are sent. So that it is unbiased for every w, a share `floor` of the chances is dealt out equally:
    p >= floor·k/d, omega = d / (floor·k) - 1 at worst.
    """

    poisson: bool = False
    floor: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.floor <= 1:
            raise CompositionError(f"Stochastic: floor must be in (0, 1], got {self.floor}; 0.1 is usual")

    @cached_property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        return _SCALES | {Capability.VARIABLE_SIZE} if self.poisson else Important.capabilities

    def bounds(self, numel: int) -> tuple[int, int]:
        return (0, numel) if self.poisson else super().bounds(numel)

    def select(self, scores: Tensor, key: Key) -> Tensor:
        if self.poisson:
            return (uniforms(key, scores) < self.chances(scores)).nonzero().flatten()
        importance = self.importance_of(scores)
        rates = torch.ones(scores.numel(), device=scores.device) if importance is None else importance
        return first_arrivals(rates.double().log(), self.count(scores.numel()), key)

    def chances(self, flat: Tensor) -> Tensor:
        """With which each coordinate is sent if poisson is on."""
        importance, numel = self.importance_of(flat), max(1, flat.numel())
        even = torch.full((flat.numel(),), 1 / numel, dtype=torch.float64, device=flat.device)
        shares = even if importance is None else shares_of(importance)
        return (self.count(flat.numel()) * ((1 - self.floor) * shares + self.floor * even)).clamp(max=1.0)

    def take(self, flat: Tensor, positions: Tensor) -> Tensor:
        if not self.poisson:
            return flat[positions]
        return _as(flat[positions].double() / self.chances(flat)[positions], flat.dtype)

    def contract(self, spec: TensorSpec) -> Contract:
        inner = self.values.contract(values_spec(spec, spec.numel)).omega
        if not self.poisson or inner is None:
            return Contract()
        omega = max(1.0, spec.numel / (self.floor * max(1, self.count(spec.numel)))) - 1
        return Contract(omega=omega + inner + omega * inner)


def _as(doubles: Tensor, dtype: torch.dtype) -> Tensor:
    return cast_saturating(saturate(doubles), dtype)  # doubles too may outgrow their type


def factors(importance: Tensor, weights: str) -> Tensor:
    """s·w for the kept coordinates, in double precision; all ones if their w are all zero and s is to be found."""
    wide = importance.double()
    if weights == "plain":
        return wide
    scaled = shares_of(wide) * wide.numel()
    return scaled.clamp(max=LARGEST_WEIGHT) if weights == "clamped" else scaled


def shares_of(importance: Tensor) -> Tensor:
    """w / sum w; equal shares where all is zero."""
    wide = importance.double()
    total = wide.sum()
    return torch.where(total > 0, wide / total, 1 / max(1, wide.numel()))


def most_important(importance: Tensor, magnitudes: Tensor, count: int) -> Tensor:
    """Positions of the largest w, ascending; among equal w the largest magnitudes, among those the first.

    In a box many w stand at its edge: taken by position, they would always be the same few.
    """
    positions = largest_magnitudes(importance, count)
    if count == 0 or count == importance.numel():
        return positions
    edge = importance[positions].min()
    above, level = (importance > edge).nonzero().flatten(), (importance == edge).nonzero().flatten()
    level = level[largest_magnitudes(magnitudes[level], count - above.numel())]
    return torch.cat((above, level)).sort().values
