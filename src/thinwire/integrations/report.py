"""The report of a handle: bytes, saving and times so far, by layer and by kind; prints as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..controller_report import ControllerReport
from ..core import World, format_bytes
from ..core.flattening import FLATTENED
from ..drivers.meter import Meter
from .compositions import Compositions

MAX_LAYERS = 12
# names of the kinds of traffic that belong to no single layer
COMMON_KINDS = {
    "header": "headers and lengths of messages",
    "flag": "flags: NaN or infinity",
    "settings": "comparison of settings",
    "fingerprint": "comparison of weights",
    "plan": "statistics and plans of the controller",
    "used parameters": "map of used parameters",
    "state": "state_dict() of all ranks",
    "counters": "step counters of Adam",
    "measure": "consensus()",
    "drift": "drift of weights",
    "agree": "agreement on a full average",
    "the end of training": "end of training",
    "values": "other",
}


@dataclass(frozen=True)
class ReportContext:
    """What a report says beside its numbers."""

    compositions: Compositions
    state: str = ""  # paused, detached, closed, ...
    unit: str = "step"
    dense: str = "dense DDP"  # the baseline of the saving
    facts: Mapping[str, str] = field(default_factory=dict)  # further lines below the composition
    titles: Mapping[str, str] = field(default_factory=dict)  # of layers, instead of their names


@dataclass(frozen=True)
class TrafficReport:
    """Bytes, saving and times of one rank so far. Prints as a table.

    Attributes:
        rank: This rank.
        workers: Number of ranks.
        steps: Steps (or rounds) so far.
        dense_bytes: What a ring all-reduce of all gradients would have sent in these steps.
        sent_bytes: Bytes that this rank sent, headers included.
        received_bytes: Bytes that this rank received.
        by_layer: Bytes sent, by layer.
        by_kind: Bytes sent, by kind (indices, values, header, ...).
        common: Bytes sent that belong to no single layer, by kind.
        seconds: Seconds by kind of work, by this rank's clock.
        skipped_steps: Steps (or rounds) skipped because of a NaN or an infinity.
        resynced_tensors: Tensors that were copied from rank 0 because they differed between ranks.
        adapting: Decisions and cost of the controller; None without a controller.
        context: Compositions, state of the handle and units.
    """

    rank: int
    workers: int
    steps: int
    dense_bytes: float
    sent_bytes: float
    received_bytes: float
    by_layer: Mapping[str, float]
    by_kind: Mapping[str, float]
    common: Mapping[str, float]
    seconds: Mapping[str, float]
    skipped_steps: int
    resynced_tensors: int
    adapting: ControllerReport | None
    context: ReportContext

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
        context: ReportContext,
    ) -> TrafficReport:
        """Make a report from the counts of a meter; gradient_bytes: dense bytes of all layers in one step."""
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
            skipped, resynced_tensors, adapting, context,
        )  # fmt: skip

    @property
    def saving(self) -> float:
        """dense_bytes / sent_bytes; NaN if nothing was sent."""
        return self.dense_bytes / self.sent_bytes if self.sent_bytes else float("nan")

    @property
    def compositions(self) -> Mapping[str, str]:
        """The composition text of every layer."""
        return self.context.compositions.texts

    @property
    def fallbacks(self) -> Mapping[str, str]:
        """Layers that are sent dense though another composition was passed, with the reason."""
        return self.context.compositions.fallbacks

    def __str__(self) -> str:
        unit, per_step = self.context.unit, 1 / max(1, self.steps)
        first, *others = self.context.compositions.lines() or ["none"]
        lines = [
            f"thinwire, rank {self.rank} of {self.workers}, {_count(self.steps, unit)}"
            + (f", {self.skipped_steps} skipped" if self.skipped_steps else "")
            + (f", {_count(self.resynced_tensors, 'tensor')} resynchronized" if self.resynced_tensors else "")
            + (f", {self.context.state}" if self.context.state else ""),
            f"  composition  {first}",
            *(f"               {other}" for other in others),
            *(f"  {name:<11}  {text}" for name, text in self.context.facts.items()),
            f"  sent         {format_bytes(self.sent_bytes)}, {format_bytes(self.sent_bytes * per_step)} a {unit}",
            f"  {self.context.dense:<11}  {format_bytes(self.dense_bytes)}, "
            f"{format_bytes(self.dense_bytes * per_step)} a {unit} (by formula)",
            f"  saving       {self._saving()}",
            "  time         "
            + ", ".join(f"{name} {1e3 * s * per_step:.2f} ms a {unit}" for name, s in self.seconds.items()),
        ]
        lines += self.adapting.lines(self.steps) if self.adapting is not None else []
        return "\n".join(lines + self._table(per_step))

    def _saving(self) -> str:
        if self.workers == 1:
            return "- (one rank: nothing is sent)"
        if not self.steps:
            return f"- (no {self.context.unit} yet)"
        return f"{self.saving:.3g}×" if self.sent_bytes else "- (nothing was sent)"

    def _table(self, per_step: float) -> list[str]:
        """Bytes by layer, then those that belong to no single layer, by kind."""
        if not self.sent_bytes:
            return []
        context = self.context
        layers = [(self._title(name), sent, context.compositions.remark(name)) for name, sent in self.by_layer.items()]
        common = [
            (COMMON_KINDS.get(kind, kind), sent, "")
            for kind, sent in sorted(self.common.items(), key=lambda kv: -kv[1])
            if sent
        ]
        shown = layers[:MAX_LAYERS]
        width = max(len(name) for name, *_ in [*shown, *common])

        def format_rows(rows: list[tuple[str, float, str]]) -> list[str]:
            return [
                f"    {name:<{width}} {format_bytes(sent * per_step):>8} a {context.unit}  {mark}".rstrip()
                for name, sent, mark in rows
            ]

        more = len(layers) - len(shown)
        lines = ["  by layer", *format_rows(shown)] if shown else []
        lines += [f"    ... and {_count(more, 'more layer')}"] if more else []
        return lines + (["  of no single layer", *format_rows(common)] if common else [])

    def _title(self, name: str) -> str:
        if name == FLATTENED and name not in self.compositions:
            return "whole (layers sent as one)"
        return self.context.titles.get(name, name)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def describe_handle(
    handle: object, compositions: Compositions, step: int, world: World, state: str, unit: str = "step"
) -> str:
    """Return the one-line repr of a handle."""
    where = "one rank" if world.size == 1 else f"rank {world.rank} of {world.size}"
    parts = [compositions.summary(), f"{unit} {step}", where, state]
    return f"<thinwire {type(handle).__name__}: {'; '.join(filter(None, parts))}>"
