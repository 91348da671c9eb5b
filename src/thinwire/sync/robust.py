"""Averages that a few dishonest clients cannot move at will. Rows are updates, one client each, (clients, d)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import Capability, CompositionError, Compressor, IncompatibleParts, TensorSpec, has

RULES = ("mean", "clip", "krum", "trimmed", "median")
_BY_COORDINATE = ("trimmed", "median")


@dataclass(frozen=True)
class Rule:
    """How the updates of a round become one.

    mean: by weight; one dishonest client can move it anywhere (breakdown point 0). clip: the same of updates cut to the
    norm `clip`. krum: the one update that is nearest to its n - faulty - 2 nearest. trimmed: at each coordinate without
    the `faulty` largest and smallest. median: at each coordinate. The last three look at no weights.
    """

    name: str = "mean"
    faulty: int = 0
    clip: float = math.inf

    def __post_init__(self) -> None:
        if self.name not in RULES:
            raise CompositionError(f"aggregate must be one of {', '.join(RULES)}, got {self.name!r}")
        if self.faulty < 0:
            raise CompositionError(f"aggregate {self.name}: faulty must be at least 0, got {self.faulty}")
        if (self.name == "clip") != (self.clip < math.inf) or not self.clip > 0:
            raise CompositionError(f"aggregate {self.name}: clip is the largest norm under `clip`, got {self.clip}")

    def check(self, compressor: Compressor, believes: bool) -> None:
        """Refuse what the rule would make nonsense of, when parts are put together."""
        name = type(compressor).__name__
        if self.name in _BY_COORDINATE and not has(compressor, Capability.SENDS_EVERY_COORDINATE):
            raise IncompatibleParts(
                f"{self.name} compares clients coordinate by coordinate, {name} sends few of each client's, or "
                "none by itself: most would be zeros; use krum or clip, or a quantiser such as qsgd()"
            )
        if believes and self.name != "mean":
            raise IncompatibleParts(
                f"EF21 under {self.name}: a client whose update is not used would still be told that it is believed; "
                "use ef(...)"
            )

    @property
    def least(self) -> int:
        """How many updates it needs."""
        return {"krum": 2 * self.faulty + 3, "trimmed": 2 * self.faulty + 1}.get(self.name, 1)

    def combined(self, rows: Iterable[Tensor], weights: Sequence[float]) -> Tensor:
        """Means take one row at a time, so that they need no more memory than two models; the others need all."""
        if self.name in ("mean", "clip"):
            return weighted_mean((clipped(row, self.clip) for row in rows), weights)
        stacked = torch.stack(list(rows))
        if self.name == "krum":
            return krum(stacked, self.faulty)
        return median(stacked) if self.name == "median" else trimmed_mean(stacked, self.faulty)


def weighted_mean(rows: Iterable[Tensor], weights: Sequence[float]) -> Tensor:
    """Sum of row · weight / all weights, in this order."""
    whole = math.fsum(weights)
    total: Tensor | None = None
    for row, weight in zip(rows, weights, strict=True):
        share = row * (weight / whole)
        total = share if total is None else total + share
    if total is None:
        raise ValueError("weighted_mean: at least one row is needed, got none")
    return total


def clipped(row: Tensor, norm: float) -> Tensor:
    """The row, or its direction with this norm if it is longer. Never overflows."""
    if norm == math.inf or not row.numel():
        return row
    wide = row.double()
    peak = float(wide.abs().amax())
    if peak == 0:
        return row
    length = peak * float((wide / peak).norm())
    return row if length <= norm else (wide / peak * (norm / (length / peak))).to(row.dtype)


def krum(rows: Tensor, faulty: int) -> Tensor:
    """The row with the least sum of squared distances to its nearest n - faulty - 2 others; the first of equals."""
    count = len(rows)
    if count < 2 * faulty + 3:
        raise ValueError(f"krum: {2 * faulty + 3} rows are needed against {faulty} faulty ones, got {count}")
    apart = torch.cdist(rows.double(), rows.double(), compute_mode="donot_use_mm_for_euclid_dist").square()
    near = apart.sort(dim=1).values[:, 1 : count - faulty - 1]  # without itself
    return rows[int(near.sum(dim=1).argmin())]


def trimmed_mean(rows: Tensor, faulty: int) -> Tensor:
    count = len(rows)
    if count <= 2 * faulty:
        raise ValueError(f"trimmed: {2 * faulty + 1} rows are needed against {faulty} faulty ones, got {count}")
    return (rows.sort(dim=0).values[faulty : count - faulty] / (count - 2 * faulty)).sum(dim=0)


def median(rows: Tensor) -> Tensor:
    """The middle one, or half-way between the middle two."""
    ordered, half = rows.sort(dim=0).values, len(rows) // 2
    return ordered[half] if len(rows) % 2 else ordered[half - 1] / 2 + ordered[half] / 2


def flat(values: Mapping[str, Tensor], layers: Sequence[TensorSpec]) -> Tensor:
    """All layers as one vector, in the widest type that one of them is added up in."""
    wide = torch.float64 if any(spec.work_dtype == torch.float64 for spec in layers) else torch.float32
    return torch.cat([values[spec.name].to(wide).flatten() for spec in layers])


def unflat(vector: Tensor, layers: Sequence[TensorSpec]) -> dict[str, Tensor]:
    pieces = torch.split(vector, [spec.numel for spec in layers])
    return {spec.name: piece.view(spec.shape) for spec, piece in zip(layers, pieces, strict=True)}
