"""What a handle has sent so far, and through which compositions; prints as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..controller_report import ControllerReport
from ..core import World, format_bytes
from ..core.flattening import FLATTENED
from ..drivers.meter import Meter
from .compositions import Compositions

MAX_LAYERS = 12
# kinds of traffic that belong to no single layer, in a reader's words
COMMON = {
    "header": "headers and lengths of messages",
    "flag": "flags: no NaN, no infinity",
    "settings": "settings, compared at the start",
    "fingerprint": "fingerprints of weights, compared",
    "plan": "statistics and plans of the controller",
    "used parameters": "which parameters were used",
    "state": "state_dict() of all ranks",
    "counters": "step counters of Adam",
    "measure": "consensus(), measured",
    "drift": "drift of weights, measured",
    "agree": "agreement on a full average",
    "the end of training": "end of training",
    "values": "other",
}


@dataclass(frozen=True)
class ReportContext:
    """What a report is about, beside its figures."""

    compositions: Compositions
    state: str = ""  # paused, detached, closed, ...
    unit: str = "step"
    dense: str = "dense DDP"  # what the saving is measured against
    facts: Mapping[str, str] = field(default_factory=dict)  # further lines under the composition
    titles: Mapping[str, str] = field(default_factory=dict)  # of layers whose names say too little


@dataclass(frozen=True)
class TrafficReport:
    """One rank's view. Bytes were counted where they were sent; seconds are of this rank's clocks, so far."""

    rank: int
    workers: int
    steps: int
    dense_bytes: float  # what plain DDP would have sent for the same steps: a ring all-reduce of every gradient
    sent_bytes: float
    received_bytes: float
    by_layer: Mapping[str, float]
    by_kind: Mapping[str, float]
    common: Mapping[str, float]  # by kind: what belongs to no single layer, such as headers
    seconds: Mapping[str, float]
    skipped_steps: int
    resynced_tensors: int
    adapting: ControllerReport | None  # what choosing per layer cost, where a controller chooses
    subject: ReportContext

    @classmethod
    def of(
        cls,
        meter: Meter,
        world: World,
        steps: int,
        gradient_bytes: int,
        seconds: Mapping[str, float],
        skipped: int,
        resynced_tensors: int,
        adapting: ControllerReport | None,
        subject: ReportContext,
    ) -> TrafficReport:
        total = meter.total()
        dense = steps * gradient_bytes * 2 * (world.size - 1) / world.size
        by_layer, by_kind = (
            {str(k): t.sent_bytes for k, t in sorted(meter.sum_by(what).items(), key=lambda kv: -kv[1].sent_bytes)}
            for what in ("layer", "kind")
        )
        by_layer.pop("", None)
        common: dict[str, float] = {}
        for where, traffic in meter.rows.items():
            if not where.layer:
                common[where.kind] = common.get(where.kind, 0.0) + traffic.sent_bytes
        return cls(
            *world, steps, dense, total.sent_bytes, total.received_bytes, by_layer, by_kind, common, dict(seconds),
            skipped, resynced_tensors, adapting, subject,
        )  # fmt: skip

    @property
    def saving(self) -> float:
        return self.dense_bytes / self.sent_bytes if self.sent_bytes else float("nan")

    @property
    def compositions(self) -> Mapping[str, str]:
        """The composition text of every layer."""
        return self.subject.compositions.texts

    @property
    def fallbacks(self) -> Mapping[str, str]:
        """Layers that travel dense though another composition was asked for, and why."""
        return self.subject.compositions.fallbacks

    def __str__(self) -> str:
        unit, per_step = self.subject.unit, 1 / max(1, self.steps)
        first, *others = self.subject.compositions.lines() or ["none"]
        lines = [
            f"thinwire, rank {self.rank} of {self.workers}, {_count(self.steps, unit)}"
            + (f", {self.skipped_steps} skipped" if self.skipped_steps else "")
            + (f", {_count(self.resynced_tensors, 'tensor')} resynchronized" if self.resynced_tensors else "")
            + (f", {self.subject.state}" if self.subject.state else ""),
            f"  composition  {first}",
            *(f"               {other}" for other in others),
            *(f"  {name:<11}  {text}" for name, text in self.subject.facts.items()),
            f"  sent         {format_bytes(self.sent_bytes)}, {format_bytes(self.sent_bytes * per_step)} a {unit}",
            f"  {self.subject.dense:<11}  {format_bytes(self.dense_bytes)}, "
            f"{format_bytes(self.dense_bytes * per_step)} a {unit} (by formula)",
            f"  saving       {self._saving()}",
            "  time         "
            + ", ".join(f"{name} {1e3 * s * per_step:.2f} ms a {unit}" for name, s in self.seconds.items()),
        ]
        lines += self.adapting.lines(self.steps) if self.adapting is not None else []
        return "\n".join(lines + self._table(per_step))

    def _saving(self) -> str:
        if self.workers == 1:
            return "- (one rank: there is nothing to send)"
        if not self.steps:
            return f"- (no {self.subject.unit} was made yet)"
        return f"{self.saving:.3g}×" if self.sent_bytes else "- (nothing was sent)"

    def _table(self, per_step: float) -> list[str]:
        """Bytes by layer, then what belongs to all layers, by kind."""
        if not self.sent_bytes:
            return []
        about = self.subject
        layers = [(self._title(name), sent, about.compositions.mark(name)) for name, sent in self.by_layer.items()]
        common = [
            (COMMON.get(kind, kind), sent, "")
            for kind, sent in sorted(self.common.items(), key=lambda kv: -kv[1])
            if sent
        ]
        shown = layers[:MAX_LAYERS]
        width = max(len(name) for name, *_ in [*shown, *common])

        def rows(of: list[tuple[str, float, str]]) -> list[str]:
            return [
                f"    {name:<{width}} {format_bytes(sent * per_step):>8} a {about.unit}  {mark}".rstrip()
                for name, sent, mark in of
            ]

        more = len(layers) - len(shown)
        lines = ["  by layer", *rows(shown)] if shown else []
        lines += [f"    ... and {_count(more, 'more layer')}"] if more else []
        return lines + (["  of no single layer", *rows(common)] if common else [])

    def _title(self, name: str) -> str:
        if name == FLATTENED and name not in self.compositions:
            return "whole (layers sent as one)"
        return self.subject.titles.get(name, name)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def repr_of(handle: object, compositions: Compositions, step: int, world: World, state: str, unit: str = "step") -> str:
    """What a handle is, in one line."""
    where = "one rank" if world.size == 1 else f"rank {world.rank} of {world.size}"
    parts = [compositions.summary(), f"{unit} {step}", where, state]
    return f"<thinwire {type(handle).__name__}: {'; '.join(filter(None, parts))}>"
