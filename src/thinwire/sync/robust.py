"""Byzantine-robust aggregation: Krum (Blanchard et al., 2017), trimmed mean and median (Yin et al., 2018).

Rows are the updates of clients: (clients, d).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import Capability, CompositionError, Compressor, IncompatibleParts, TensorSpec, has

METHODS = ("mean", "clip", "krum", "trimmed", "median")
_BY_COORDINATE = ("trimmed", "median")


@dataclass(frozen=True)
class RobustMean:
    """How the updates of a round are combined.

    Args:
        method: "mean": weighted; one malicious client can move it anywhere (breakdown point 0). "clip": the weighted
            mean of updates clipped to the norm `clip`. "krum": the update that is nearest to its
            n - num_byzantine - 2 nearest others. "trimmed": per coordinate, without the num_byzantine largest and
            smallest. "median": per coordinate. The last three ignore the weights.
        num_byzantine: number of malicious clients that "krum" and "trimmed" tolerate.
        clip: the largest norm under "clip".
    """

    method: str = "mean"
    num_byzantine: int = 0
    clip: float = math.inf

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise CompositionError(f"RobustMean: method must be one of {', '.join(METHODS)}, got {self.method!r}")
        if self.num_byzantine < 0:
            raise CompositionError(f"RobustMean: num_byzantine must be at least 0, got {self.num_byzantine}")
        if (self.method == "clip") != (self.clip < math.inf) or not self.clip > 0:
            raise CompositionError(
                f"RobustMean: clip must be a positive norm for method 'clip' and unset for others, got {self.clip} "
                f"for {self.method!r}"
            )

    def check(self, compressor: Compressor, keeps_estimates: bool) -> None:
        """Raise IncompatibleParts for a compressor that this method cannot combine."""
        name = type(compressor).__name__
        if self.method in _BY_COORDINATE and not has(compressor, Capability.SENDS_EVERY_COORDINATE):
            raise IncompatibleParts(
                f"{self.method} compares the clients' values of each coordinate; {name} sends few coordinates of each "
                "client, so most would be zeros; use krum or clip, or a quantizer such as qsgd()"
            )
        if keeps_estimates and self.method != "mean":
            raise IncompatibleParts(
                f"EF21 with {self.method}: an update that is not used would change the estimate as well; use ef(...)"
            )

    @property
    def min_updates(self) -> int:
        """Number of updates that the method needs."""
        return {"krum": 2 * self.num_byzantine + 3, "trimmed": 2 * self.num_byzantine + 1}.get(self.method, 1)

    def combine(self, rows: Iterable[Tensor], weights: Sequence[float]) -> Tensor:
        """Combine the rows. Means take one row at a time and need memory for two models; other methods need all."""
        if self.method in ("mean", "clip"):
            return weighted_mean((clip_norm(row, self.clip) for row in rows), weights)
        stacked = torch.stack(list(rows))
        if self.method == "krum":
            return krum(stacked, self.num_byzantine)
        return median(stacked) if self.method == "median" else trimmed_mean(stacked, self.num_byzantine)


def weighted_mean(rows: Iterable[Tensor], weights: Sequence[float]) -> Tensor:
    """Sum of row · weight / total weight, in this order."""
    total_weight = math.fsum(weights)
    total: Tensor | None = None
    for row, weight in zip(rows, weights, strict=True):
        share = row * (weight / total_weight)
        total = share if total is None else total + share
    if total is None:
        raise ValueError("weighted_mean: rows must not be empty")
    return total


def clip_norm(row: Tensor, norm: float) -> Tensor:
    """The row, scaled down to this norm if it is longer. Never overflows."""
    if norm == math.inf or not row.numel():
        return row
    wide = row.double()
    peak = float(wide.abs().amax())
    if peak == 0:
        return row
    length = peak * float((wide / peak).norm())
    return row if length <= norm else (wide / peak * (norm / (length / peak))).to(row.dtype)


def krum(rows: Tensor, num_byzantine: int) -> Tensor:
    """Krum (Blanchard et al., 2017): the row with the smallest sum of squared distances to its nearest others.

    n - num_byzantine - 2 others count; of equal rows the first is taken.
    """
    count = len(rows)
    if count < 2 * num_byzantine + 3:
        raise ValueError(
            f"krum: {2 * num_byzantine + 3} rows are needed for num_byzantine={num_byzantine}, got {count}"
        )
    apart = torch.cdist(rows.double(), rows.double(), compute_mode="donot_use_mm_for_euclid_dist").square()
    near = apart.sort(dim=1).values[:, 1 : count - num_byzantine - 1]  # without itself
    return rows[int(near.sum(dim=1).argmin())]


def trimmed_mean(rows: Tensor, num_byzantine: int) -> Tensor:
    """Mean per coordinate without the num_byzantine largest and smallest values (Yin et al., 2018)."""
    count = len(rows)
    if count <= 2 * num_byzantine:
        raise ValueError(
            f"trimmed: {2 * num_byzantine + 1} rows are needed for num_byzantine={num_byzantine}, got {count}"
        )
    return (rows.sort(dim=0).values[num_byzantine : count - num_byzantine] / (count - 2 * num_byzantine)).sum(dim=0)


def median(rows: Tensor) -> Tensor:
    """Median per coordinate (Yin et al., 2018): the middle value, or the mean of the middle two."""
    ordered, half = rows.sort(dim=0).values, len(rows) // 2
    return ordered[half] if len(rows) % 2 else ordered[half - 1] / 2 + ordered[half] / 2


def flatten_layers(values: Mapping[str, Tensor], layers: Sequence[TensorSpec]) -> Tensor:
    """All layers as one vector, in float64 if one of them is summed in it, else float32."""
    wide = torch.float64 if any(spec.work_dtype == torch.float64 for spec in layers) else torch.float32
    return torch.cat([values[spec.name].to(wide).flatten() for spec in layers])


def unflatten_layers(vector: Tensor, layers: Sequence[TensorSpec]) -> dict[str, Tensor]:
    """The layers of a vector that `flatten_layers` made."""
    pieces = torch.split(vector, [spec.numel for spec in layers])
    return {spec.name: piece.view(spec.shape) for spec, piece in zip(layers, pieces, strict=True)}
