"""What a wire did so far, in figures; prints as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..core import World
from ..drivers.meter import Meter
from .adapting import Adapting


@dataclass(frozen=True)
class WireReport:
    """One rank's view. Bytes were counted where they were sent; seconds are of this rank's clocks, so far."""

    rank: int
    workers: int
    steps: int
    dense_bytes: float  # what plain DDP would have sent for the same steps: a ring all-reduce of every gradient
    sent_bytes: float
    received_bytes: float
    by_layer: Mapping[str, float]
    by_kind: Mapping[str, float]
    seconds: Mapping[str, float]
    skipped_steps: int
    healed: int
    adapting: Adapting | None = None  # what choosing per layer cost, where somebody chooses

    @classmethod
    def of(
        cls,
        meter: Meter,
        world: World,
        steps: int,
        gradient_bytes: int,
        seconds: Mapping[str, float],
        skipped: int,
        healed: int,
        adapting: Adapting | None = None,
    ) -> WireReport:
        total = meter.total()
        dense = steps * gradient_bytes * 2 * (world.size - 1) / world.size
        by_layer, by_kind = (
            {str(k): t.sent_bytes for k, t in sorted(meter.by(what).items(), key=lambda kv: -kv[1].sent_bytes)}
            for what in ("layer", "kind")
        )
        return cls(
            *world,
            steps,
            dense,
            total.sent_bytes,
            total.received_bytes,
            by_layer,
            by_kind,
            dict(seconds),
            skipped,
            healed,
            adapting,
        )

    @property
    def saving(self) -> float:
        return self.dense_bytes / self.sent_bytes if self.sent_bytes else float("nan")

    def __str__(self) -> str:
        per_step = 1 / max(1, self.steps)
        lines = [
            f"thinwire, rank {self.rank} of {self.workers}, {self.steps} steps"
            + (f", {self.skipped_steps} skipped" if self.skipped_steps else "")
            + (f", {self.healed} tensors healed" if self.healed else ""),
            f"  sent       {_bytes(self.sent_bytes)}, {_bytes(self.sent_bytes * per_step)} a step",
            f"  dense DDP  {_bytes(self.dense_bytes)}, {_bytes(self.dense_bytes * per_step)} a step (by formula)",
            f"  saving     {self.saving:.3g}×",
            "  time       "
            + ", ".join(f"{name} {1e3 * s * per_step:.2f} ms a step" for name, s in self.seconds.items()),
        ]
        lines += self.adapting.lines(self.steps) if self.adapting is not None else []
        width = max([len(name) for name in self.by_layer] + [12])
        lines += [
            f"    {name or '(all layers)':<{width}} {_bytes(sent * per_step):>12} a step"
            for name, sent in list(self.by_layer.items())[:12]
        ]
        if len(self.by_layer) > 12:
            lines.append(f"    ... and {len(self.by_layer) - 12} more")
        return "\n".join(lines)


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
